// Counter-based random numbers: the value at (seed, stream, index) depends on nothing else, so any rank or
// thread can generate any part of a sequence. Philox4x32-10, Salmon et al., "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tessera {

// 128 random bits for one counter value.
constexpr std::array<uint32_t, 4> philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
  constexpr uint64_t kMultiplier0 = 0xD2511F53u;
  constexpr uint64_t kMultiplier1 = 0xCD9E8D57u;
  constexpr uint32_t kWeyl0 = 0x9E3779B9u;
  constexpr uint32_t kWeyl1 = 0xBB67AE85u;
  auto k0 = static_cast<uint32_t>(key);
  auto k1 = static_cast<uint32_t>(key >> 32);
  std::array<uint32_t, 4> c = {static_cast<uint32_t>(counter_low), static_cast<uint32_t>(counter_low >> 32),
                               static_cast<uint32_t>(counter_high),
                               static_cast<uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = kMultiplier0 * c[0];
    const uint64_t product1 = kMultiplier1 * c[2];
    c = {static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ k0, static_cast<uint32_t>(product1),
         static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ k1, static_cast<uint32_t>(product0)};
    k0 += kWeyl0;
    k1 += kWeyl1;
  }
  return c;
}

// A stable 64-bit hash of a name (FNV-1a), used to derive a stream from a tensor's name.
uint64_t hash_name(std::string_view name);

class CounterRng {
 public:
  CounterRng(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream) {}

  // Uniform in [0, 1) with 24 bits.
  float uniform(uint64_t index) const;
  // Standard normal (Box-Muller); two of a counter's four words produce two values.
  float normal(uint64_t index) const;
  // normal(2 * pair) and normal(2 * pair + 1) for the price of one.
  std::array<float, 2> normal_pair(uint64_t pair) const;

 private:
  uint64_t seed_;
  uint64_t stream_;
};

}  // namespace tessera
