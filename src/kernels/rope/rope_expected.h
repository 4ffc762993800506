// The formula of rope.h in float64, with error bounds.
#pragma once

#include "kernels/expected.h"
#include "kernels/rope/rope.h"

namespace tessera {

// The rows of qkv_TQ after the call.
inline std::vector<Expected> expected_rope(std::span<const double> qkv_TQ, const AttentionShape& shape,
                                           std::span<const int32_t> positions, const RopeTable& table,
                                           bool inverse) {
  std::vector<Expected> expected;
  for (const double value : qkv_TQ) expected.push_back({value, 0});
  const int64_t half = shape.head_dim / 2, num_rotated = shape.num_heads + shape.num_key_value_heads;
  for (int64_t t = 0; t < std::ssize(positions); ++t) {
    for (int64_t i = 0; i < num_rotated * half; ++i) {
      const int64_t angle = positions[static_cast<size_t>(t)] * half + i % half;
      const double c = element(table.cos, angle), s = element(table.sin, angle) * (inverse ? -1 : 1);
      Expected* const first =
          &expected[static_cast<size_t>(t * shape.qkv_width() + i / half * 2 * half + i % half)];
      Expected* const second = first + half;
      const double a = first->value, b = second->value;
      // Two products and a sum.
      *first = {a * c - b * s, 2 * kFloatEps * (std::abs(a * c) + std::abs(b * s))};
      *second = {b * c + a * s, 2 * kFloatEps * (std::abs(b * c) + std::abs(a * s))};
    }
  }
  return expected;
}

}  // namespace tessera
