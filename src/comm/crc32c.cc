#include "comm/crc32c.h"

#include <nmmintrin.h>

#include <array>
#include <cstring>

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

// What kBlockBytes zeros make of a register. The register after data is linear in the register before, so the
// parts of three streams can be put together by this and an exclusive or.
constexpr int64_t kBlockBytes = 2048;  // three of them lie in L1
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

// The instruction takes 3 cycles and starts one per cycle: three independent streams keep it busy.
__attribute__((target("sse4.2"))) uint32_t crc32c_sse42(uint32_t crc, std::span<const std::byte> data) {
  static const ZeroBlock zero_block;
  const std::byte* at = data.data();
  auto left = static_cast<int64_t>(data.size());
  uint64_t a = ~crc;
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
  return ~last;
}

}  // namespace

uint32_t crc32c_ref(uint32_t crc, std::span<const std::byte> data) {
  crc = ~crc;
  for (const std::byte byte : data)
    crc = (crc >> 8) ^ kByteTable[(crc ^ std::to_integer<uint8_t>(byte)) & 0xFF];
  return ~crc;
}

uint32_t crc32c(uint32_t crc, std::span<const std::byte> data) {
  static const bool has_instruction = __builtin_cpu_supports("sse4.2") != 0;
  return has_instruction ? crc32c_sse42(crc, data) : crc32c_ref(crc, data);
}

}  // namespace tessera
