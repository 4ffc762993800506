// Lengths for tests whose expected values another program computed from the same ones.
#pragma once

#include <cstdint>
#include <vector>

namespace tessera {

// In [low, high], of the linear congruential generator of C's rand().
inline std::vector<int64_t> drawn_lengths(int64_t seed, int64_t count, int64_t low, int64_t high) {
  std::vector<int64_t> lengths;
  auto state = static_cast<uint64_t>(seed);
  for (int64_t i = 0; i < count; ++i) {
    state = (state * 1103515245 + 12345) % (uint64_t{1} << 31);
    lengths.push_back(low + static_cast<int64_t>(state >> 16) % (high - low + 1));
  }
  return lengths;
}

// A hash of values above -2.
inline uint64_t hash_of(const std::vector<int64_t>& values) {
  uint64_t hash = 0;
  for (const int64_t value : values) hash = hash * 1000003 + static_cast<uint64_t>(value) + 1;
  return hash;
}

}  // namespace tessera
