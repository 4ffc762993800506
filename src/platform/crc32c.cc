#include "platform/crc32c.h"

#include <immintrin.h>

#include <array>
#include <cstring>

#include "platform/cpu.h"

namespace tessera {
namespace {

constexpr uint32_t kReflectedPolynomial = 0x82F63B78u;

using Table = std::array<uint32_t, 256>;

constexpr Table make_byte_table() {
  Table table{};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t crc = byte;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? kReflectedPolynomial : 0);
    table[byte] = crc;
  }
  return table;
}
constexpr Table kByteTable = make_byte_table();

// The effect of kBlockBytes zeros on a register. The register after data is linear in the register before it,
// so this and an exclusive or combine the parts of three streams.
constexpr int64_t kBlockBytes = 2048;  // three of them fit in L1
class ZeroBlock {
 public:
  ZeroBlock() {
    std::array<uint32_t, 32> of_bit{};
    for (int bit = 0; bit < 32; ++bit) {
      uint32_t crc = 1u << bit;
      for (int64_t i = 0; i < kBlockBytes; ++i) crc = (crc >> 8) ^ kByteTable[crc & 0xFF];
      of_bit[static_cast<size_t>(bit)] = crc;
    }
    for (size_t byte = 0; byte < 4; ++byte) {
      for (uint32_t value = 0; value < 256; ++value) {
        uint32_t crc = 0;
        for (size_t bit = 0; bit < 8; ++bit) crc ^= (value >> bit & 1) != 0 ? of_bit[8 * byte + bit] : 0;
        of_byte_[byte][value] = crc;
      }
    }
  }

  uint32_t append(uint32_t crc) const {
    return of_byte_[0][crc & 0xFF] ^ of_byte_[1][crc >> 8 & 0xFF] ^ of_byte_[2][crc >> 16 & 0xFF] ^
           of_byte_[3][crc >> 24];
  }

 private:
  std::array<Table, 4> of_byte_;
};

uint64_t load_8(const std::byte* from) {
  uint64_t value;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

// The register after appending `data`. The instruction takes 3 cycles and starts one per cycle: three
// independent streams keep it busy.
__attribute__((target("sse4.2"))) uint32_t append_sse42(uint32_t state, std::span<const std::byte> data) {
  static const ZeroBlock zero_block;
  const std::byte* at = data.data();
  auto left = static_cast<int64_t>(data.size());
  uint64_t a = state;
  for (; left >= 3 * kBlockBytes; left -= 3 * kBlockBytes, at += 3 * kBlockBytes) {
    uint64_t b = 0;
    uint64_t c = 0;
    for (int64_t i = 0; i < kBlockBytes; i += 8) {
      a = _mm_crc32_u64(a, load_8(at + i));
      b = _mm_crc32_u64(b, load_8(at + kBlockBytes + i));
      c = _mm_crc32_u64(c, load_8(at + 2 * kBlockBytes + i));
    }
    a = zero_block.append(static_cast<uint32_t>(a)) ^ b;
    a = zero_block.append(static_cast<uint32_t>(a)) ^ c;
  }
  for (; left >= 8; left -= 8, at += 8) a = _mm_crc32_u64(a, load_8(at));
  auto last = static_cast<uint32_t>(a);
  for (; left > 0; --left, ++at) last = _mm_crc32_u8(last, std::to_integer<uint8_t>(*at));
  return last;
}

// x^n modulo the polynomial, reflected: the highest bit is x^0.
constexpr uint32_t power_of_x(int64_t n) {
  uint32_t value = 0x80000000u;
  for (; n > 0; --n) value = (value >> 1) ^ ((value & 1) != 0 ? kReflectedPolynomial : 0);
  return value;
}

// Carry-less products of 64 bytes at once (Gopal et al., Fast CRC Computation Using PCLMULQDQ, Intel 2009).
// Blocks of 16 bytes, as polynomials H x^64 + L, are folded kFoldBytes forward: times x^D, D = 8 kFoldBytes,
// they are congruent to H x^(D+64) + L x^D. A reflected 64-bit product with a 32-bit constant R is H R x^33,
// which gives the exponents. What remains of the last kFoldBytes goes through the CRC32 instruction.
__attribute__((target("avx512f,avx512vl,vpclmulqdq,sse4.2"))) uint32_t append_vpclmul(
    uint32_t state, std::span<const std::byte> data) {
  constexpr size_t kVectors = 4;
  constexpr size_t kVectorBytes = 64;
  constexpr size_t kFoldBytes = kVectors * kVectorBytes;
  if (data.size() < 2 * kFoldBytes) return append_sse42(state, data);
  constexpr auto kOfH = static_cast<int64_t>(power_of_x(8 * kFoldBytes + 31));
  constexpr auto kOfL = static_cast<int64_t>(power_of_x(8 * kFoldBytes - 33));
  const __m512i factors = _mm512_set4_epi64(kOfL, kOfH, kOfL, kOfH);
  const std::byte* at = data.data();
  __m512i folded[kVectors];
  for (size_t k = 0; k < kVectors; ++k) folded[k] = _mm512_loadu_si512(at + k * kVectorBytes);
  folded[0] = _mm512_xor_si512(folded[0], _mm512_set_epi64(0, 0, 0, 0, 0, 0, 0, state));
  size_t left = data.size() - kFoldBytes;
  at += kFoldBytes;
  for (; left >= kFoldBytes; left -= kFoldBytes, at += kFoldBytes) {
    for (size_t k = 0; k < kVectors; ++k) {
      constexpr int kXorOfThree = 0x96;
      folded[k] = _mm512_ternarylogic_epi64(_mm512_clmulepi64_epi128(folded[k], factors, 0x00),
                                            _mm512_clmulepi64_epi128(folded[k], factors, 0x11),
                                            _mm512_loadu_si512(at + k * kVectorBytes), kXorOfThree);
    }
  }
  return append_sse42(append_sse42(0, std::as_bytes(std::span(folded))), {at, left});
}

uint32_t append_ref(uint32_t state, std::span<const std::byte> data) {
  for (const std::byte byte : data) {
    state = (state >> 8) ^ kByteTable[(state ^ std::to_integer<uint8_t>(byte)) & 0xFF];
  }
  return state;
}

using Append = uint32_t (*)(uint32_t state, std::span<const std::byte> data);

Append choose() {
  if (cpu_features().avx512_dl) return append_vpclmul;
  return cpu_features().sse42 ? append_sse42 : append_ref;
}

}  // namespace

uint32_t crc32c(uint32_t crc, std::span<const std::byte> data) {
  static const Append append = choose();
  return ~append(~crc, data);
}

std::vector<std::pair<std::string, uint32_t>> crc32c_by_every_way(uint32_t crc,
                                                                  std::span<const std::byte> data) {
  std::vector<std::pair<std::string, uint32_t>> results = {{"table", ~append_ref(~crc, data)}};
  if (cpu_features().sse42) results.emplace_back("sse4.2", ~append_sse42(~crc, data));
  if (cpu_features().avx512_dl) {
    results.emplace_back("vpclmulqdq", ~append_vpclmul(~crc, data));
  }
  return results;
}

}  // namespace tessera
