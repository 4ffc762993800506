#include "weights/value_sums.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>

#include "base/rng.h"

namespace tessera {
namespace {

constexpr size_t kBlock = 1024;

uint64_t factor(uint64_t place) {
  constexpr uint64_t kFirst = 0x9E3779B97F4A7C15u, kSecond = 0xD6E8FEB86659FD93u;
  place *= kFirst;
  place ^= place >> 32;
  return (place * kSecond) | 1u;  // odd: no change of an element is lost
}

// Zeros of both signs are the same value.
uint64_t bits_of(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return bits == 0x80000000u ? 0 : bits;
}

// Adding and subtracting a number 2^13 times as large leaves the bits that F16 has of a value, 11 of them
// or those from 2^-24 on. (to_f16() takes longer; what overflows F16 is in no file of that type.)
float rounded_to_f16(float value) {
  const uint32_t power = std::bit_cast<uint32_t>(value) & 0x7F800000u;
  const float large = 12288.0f * std::bit_cast<float>(std::max(power, std::bit_cast<uint32_t>(0x1.0p-14f)));
  return power >= std::bit_cast<uint32_t>(65536.0f) ? value : (value + large) - large;
}

}  // namespace

void ValueSums::add(const Parameter& parameter, int64_t begin, std::span<const float> values) {
  uint64_t place = hash_name(parameter.name) + static_cast<uint64_t>(begin);
  for (const float value : values) {
    const uint64_t by = factor(place++);
    exact += bits_of(value) * by;
    as_bf16 += bits_of(to_float(to_bf16(value))) * by;
    as_f16 += bits_of(rounded_to_f16(value)) * by;
  }
}

void ValueSums::add(const Parameter& parameter, int64_t begin, std::span<const bf16> values) {
  std::array<float, kBlock> block;
  while (!values.empty()) {
    const size_t count = std::min(kBlock, values.size());
    std::transform(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(count), block.begin(),
                   [](bf16 value) { return to_float(value); });
    add(parameter, begin, std::span<const float>(block.data(), count));
    values = values.subspan(count);
    begin += static_cast<int64_t>(count);
  }
}

ValueSums& ValueSums::operator+=(const ValueSums& other) {
  exact += other.exact;
  as_bf16 += other.as_bf16;
  as_f16 += other.as_f16;
  return *this;
}

bool same_model(const ValueSums& a, const ValueSums& b) {
  return a.exact == b.exact || a.exact == b.as_bf16 || a.as_bf16 == b.exact || a.exact == b.as_f16 ||
         a.as_f16 == b.exact;
}

}  // namespace tessera
