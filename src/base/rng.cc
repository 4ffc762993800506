#include "base/rng.h"

#include <cmath>
#include <numbers>

namespace tessera {

std::array<uint32_t, 4> philox4x32(uint64_t key, uint64_t counter_low, uint64_t counter_high) {
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
