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
  const int64_t half = table.cos.dim(1), num_rotated = shape.num_heads + shape.num_key_value_heads;
  for (int64_t t = 0; t < std::ssize(positions); ++t) {
    const int64_t position = positions[static_cast<size_t>(t)];
    for (int64_t head = 0; head < num_rotated; ++head) {
      Expected* const x = &expected[static_cast<size_t>(t * shape.qkv_width() + head * shape.head_dim)];
      const bool is_scaled = !table.query_scale.empty() && head < shape.num_heads;
      const double factor = is_scaled ? element(table.query_scale, position) : 1;
      for (int64_t i = 0; i < half; ++i) {
        const double c = factor * element(table.cos, position * half + i);
        const double s = factor * element(table.sin, position * half + i) * (inverse ? -1 : 1);
        Expected& first = x[table.interleaved ? 2 * i : i];
        Expected& second = x[table.interleaved ? 2 * i + 1 : i + half];
        const double a = first.value, b = second.value;
        // Two products with rounded factors, and a sum.
        const double eps = (is_scaled ? 3 : 2) * kFloatEps;
        first = {a * c - b * s, eps * (std::abs(a * c) + std::abs(b * s))};
        second = {b * c + a * s, eps * (std::abs(b * c) + std::abs(a * s))};
      }
      for (int64_t i = 2 * half; is_scaled && i < shape.head_dim; ++i)
        x[i] = {factor * x[i].value, kFloatEps * std::abs(factor * x[i].value)};
    }
  }
  return expected;
}

}  // namespace tessera
