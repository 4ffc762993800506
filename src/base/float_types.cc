#include "base/float_types.h"

#include <cmath>

namespace tessera {

f16 to_f16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7FFFFFFFu;
  if (magnitude > 0x7F800000u) return f16{static_cast<uint16_t>(sign | 0x7E00u)};
  // 65520 is halfway between the largest finite value (65504) and 2^16, and rounds up to infinity.
  if (magnitude >= std::bit_cast<uint32_t>(65520.0f)) return f16{static_cast<uint16_t>(sign | 0x7C00u)};
  if (magnitude < std::bit_cast<uint32_t>(0x1.0p-14f)) {  // subnormal result: a multiple of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 0x1.0p24f;
    return f16{static_cast<uint16_t>(sign | static_cast<uint16_t>(std::nearbyint(scaled)))};
  }
  const uint32_t rebased = magnitude - (112u << 23);
  const uint32_t rounded = rebased + 0xFFFu + ((rebased >> 13) & 1u);
  return f16{static_cast<uint16_t>(sign | (rounded >> 13))};
}

}  // namespace tessera
