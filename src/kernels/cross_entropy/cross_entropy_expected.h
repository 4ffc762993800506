// The formulas of cross_entropy.h for one row in float64, with its error bounds.
#pragma once

#include <algorithm>

#include "kernels/expected.h"
#include "tensor/packed_batch.h"

namespace tessera {

// The softmax of some logits.
struct ExpectedSoftmax {
  double max, lse;
  double d;  // of the error bounds in cross_entropy.h
};

inline ExpectedSoftmax expected_softmax(std::span<const double> x_V) {
  const double max = *std::max_element(x_V.begin(), x_V.end());
  double sum = 0, weighted = 0;
  for (const double x : x_V) {
    const double e = std::exp(x - max);
    sum += e;
    if (e > 0) weighted += e * (max - x);
  }
  return {max, max + std::log(sum), 270 + weighted / sum};
}

// `smoothing` is s.
inline Expected expected_loss(std::span<const double> x_V, int32_t target, double smoothing) {
  const ExpectedSoftmax softmax = expected_softmax(x_V);
  double mean = 0, mean_abs = 0;
  for (const double x : x_V) {
    mean += x / static_cast<double>(x_V.size());
    mean_abs += std::abs(x) / static_cast<double>(x_V.size());
  }
  const double loss =
      (1 - smoothing) * (softmax.lse - x_V[static_cast<size_t>(target)]) + smoothing * (softmax.lse - mean);
  return {loss, kFloatEps * (softmax.d + 260 * smoothing * mean_abs)};
}

// dx of the columns from first_column on, whose logits are x_C, in a row of V with this softmax.
inline std::vector<Expected> expected_logits_gradient(std::span<const double> x_C, int64_t first_column,
                                                      int64_t V, const ExpectedSoftmax& softmax,
                                                      int32_t target, double smoothing, double grad_scale) {
  std::vector<Expected> dx_C(x_C.size());
  if (target == kIgnoredLabel) return dx_C;
  const double offset = smoothing / static_cast<double>(V);
  for (size_t c = 0; c < x_C.size(); ++c) {
    const double p = std::exp(x_C[c] - softmax.lse);
    const bool is_target = first_column + static_cast<int64_t>(c) == target;
    dx_C[c] = {grad_scale * (p - (is_target ? 1 - smoothing : 0) - offset),
               kFloatEps * std::abs(grad_scale) * (p * (softmax.d + 12 + softmax.max - x_C[c]) + 4 * offset)};
  }
  return dx_C;
}

}  // namespace tessera
