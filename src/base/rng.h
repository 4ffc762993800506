// Counter-based random numbers: the value at (seed, stream, index) depends on nothing else, so any rank or
// thread can generate any part of a sequence. Philox4x32-10, Salmon et al., "Parallel random numbers: as easy
// as 1, 2, 3", SC 2011.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace tessera {

// 128 random bits for one counter value.
std::array<uint32_t, 4> philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high);

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
