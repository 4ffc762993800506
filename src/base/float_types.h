// bfloat16 and float16 as storage types: arithmetic is done in float.
#pragma once

#include <bit>
#include <cstdint>

namespace tessera {

// The upper half of a float32: 8 exponent bits, 7 mantissa bits.
struct bf16 {
  uint16_t bits;
};

// IEEE 754 binary16.
struct f16 {
  uint16_t bits;
};

// Branch-free bit test: infinities and NaN have all exponent bits set.
inline bool is_finite(float value) { return (std::bit_cast<uint32_t>(value) & 0x7F800000u) != 0x7F800000u; }
inline bool is_finite(bf16 value) { return (value.bits & 0x7F80u) != 0x7F80u; }
inline bool is_finite(f16 value) { return (value.bits & 0x7C00u) != 0x7C00u; }

inline float to_float(float value) { return value; }

inline float to_float(bf16 value) { return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16); }

// Exact, including subnormals, infinities and NaN.
inline float to_float(f16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000u) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1Fu;
  const uint32_t mantissa = value.bits & 0x3FFu;
  if (exponent == 31) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent != 0) return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float magnitude = static_cast<float>(mantissa) * 0x1.0p-24f;  // subnormal: mantissa * 2^-24
  return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
}

// Round to nearest, ties to even; NaN stays NaN.
inline bf16 to_bf16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return bf16{static_cast<uint16_t>((bits >> 16) | 0x40u)};
  return bf16{static_cast<uint16_t>((bits + 0x7FFFu + ((bits >> 16) & 1u)) >> 16)};
}

// Rounds away from zero with the probability of the fraction that would be cut off, so that the expectation
// is the value: `random_bits` are 16 uniform ones. For numbers below the largest BF16.
inline bf16 round_stochastically(float value, uint32_t random_bits) {
  return bf16{static_cast<uint16_t>((std::bit_cast<uint32_t>(value) + random_bits) >> 16)};
}

// A float32 value split into two halves, the first of which is itself a valid BF16 value:
//   bits(master) = (bits(weight) << 16) + remainder, exactly
// weight is the master rounded to nearest, ties away from zero; -0x8000 <= remainder <= 0x7FFF is the
// rounding difference. (With ties to even, remainders would need a 17th bit.) A master within half a BF16
// step of the largest finite float32 has an infinite weight.
inline float join_master(bf16 weight, int16_t remainder) {
  const uint32_t high = static_cast<uint32_t>(weight.bits) << 16;
  return std::bit_cast<float>(high + static_cast<uint32_t>(static_cast<int32_t>(remainder)));
}

inline bf16 master_weight(float master) {
  return bf16{static_cast<uint16_t>((std::bit_cast<uint32_t>(master) + 0x8000u) >> 16)};
}

inline int16_t master_remainder(float master) {
  return static_cast<int16_t>(std::bit_cast<uint32_t>(master) & 0xFFFFu);
}

// Round to nearest, ties to even; overflow gives infinity, NaN stays NaN.
f16 to_f16(float value);

template <typename T>
T from_float(float value);
template <>
inline float from_float<float>(float value) {
  return value;
}
template <>
inline bf16 from_float<bf16>(float value) {
  return to_bf16(value);
}
template <>
inline f16 from_float<f16>(float value) {
  return to_f16(value);
}

}  // namespace tessera
