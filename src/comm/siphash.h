// SipHash-2-4 (Aumasson and Bernstein, 2012): a keyed checksum of short messages, which only who knows the
// key can make.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace tessera {

using SipKey = std::array<uint64_t, 2>;

inline uint64_t siphash(const SipKey& key, std::span<const std::byte> data) {
  uint64_t v0 = key[0] ^ 0x736f6d6570736575u;
  uint64_t v1 = key[1] ^ 0x646f72616e646f6du;
  uint64_t v2 = key[0] ^ 0x6c7967656e657261u;
  uint64_t v3 = key[1] ^ 0x7465646279746573u;
  const auto rounds = [&](int count) {
    for (int i = 0; i < count; ++i) {
      v0 += v1;
      v2 += v3;
      v1 = std::rotl(v1, 13) ^ v0;
      v3 = std::rotl(v3, 16) ^ v2;
      v0 = std::rotl(v0, 32);
      v2 += v1;
      v0 += v3;
      v1 = std::rotl(v1, 17) ^ v2;
      v3 = std::rotl(v3, 21) ^ v0;
      v2 = std::rotl(v2, 32);
    }
  };
  const auto absorb = [&](uint64_t word) {
    v3 ^= word;
    rounds(2);
    v0 ^= word;
  };
  size_t at = 0;
  for (; at + 8 <= data.size(); at += 8) {
    uint64_t word;
    std::memcpy(&word, data.data() + at, sizeof(word));
    absorb(word);
  }
  uint64_t last = static_cast<uint64_t>(data.size()) << 56;
  for (size_t i = 0; at + i < data.size(); ++i) last |= std::to_integer<uint64_t>(data[at + i]) << (8 * i);
  absorb(last);
  v2 ^= 0xFF;
  rounds(4);
  return v0 ^ v1 ^ v2 ^ v3;
}

}  // namespace tessera
