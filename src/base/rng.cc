#include "base/rng.h"

#include <cmath>
#include <numbers>

namespace tessera {

uint64_t hash_name(std::string_view name) {
  uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : name) {
    hash ^= static_cast<unsigned char>(c);
    hash *= 0x100000001B3u;
  }
  return hash;
}

float CounterRng::uniform(uint64_t index) const {
  const auto words = philox4x32(seed_, index / 4, stream_);
  return static_cast<float>(words[index % 4] >> 8) * 0x1.0p-24f;
}

float CounterRng::normal(uint64_t index) const { return normal_pair(index / 2)[index % 2]; }

std::array<float, 2> CounterRng::normal_pair(uint64_t pair) const {
  const auto words = philox4x32(seed_, pair, stream_);
  // The first uniform lies in (0, 1], so that its logarithm is finite.
  const double u = (static_cast<double>(words[0]) + 1.0) * 0x1.0p-32;
  const double angle = 2.0 * std::numbers::pi * static_cast<double>(words[1]) * 0x1.0p-32;
  const double radius = std::sqrt(-2.0 * std::log(u));
  return {static_cast<float>(radius * std::cos(angle)), static_cast<float>(radius * std::sin(angle))};
}

}  // namespace tessera
