// The formulas of swiglu.h in float64, with error bounds.
#pragma once

#include "kernels/expected.h"

namespace tessera {

inline double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// Roundings of silu: the exponential (2), the sum, the quotient (2), and two products.
inline constexpr double kSiluRoundings = 7;

// h_TF; gate_up_TF2 has rows of 2 F values.
inline std::vector<Expected> expected_swiglu(std::span<const double> gate_up_TF2, size_t F) {
  std::vector<Expected> h_TF;
  for (size_t begin = 0; begin < gate_up_TF2.size(); begin += 2 * F) {
    for (size_t f = begin; f < begin + F; ++f) {
      const double gate = gate_up_TF2[f], h = gate * sigmoid(gate) * gate_up_TF2[f + F];
      h_TF.push_back({h, kSiluRoundings * kFloatEps * std::abs(h)});
    }
  }
  return h_TF;
}

// dgate_up_TF2.
inline std::vector<Expected> expected_swiglu_backward(std::span<const double> dh_TF,
                                                      std::span<const double> gate_up_TF2, size_t F) {
  std::vector<Expected> dgate_up_TF2(gate_up_TF2.size());
  for (size_t i = 0; i < dh_TF.size(); ++i) {
    const size_t at = i / F * 2 * F + i % F;
    const double gate = gate_up_TF2[at], up = gate_up_TF2[at + F], s = sigmoid(gate);
    // 1 + gate (1 - s) cancels near gate = -1.28, so the bound uses its terms.
    dgate_up_TF2[at] = {dh_TF[i] * up * s * (1 + gate * (1 - s)),
                        12 * kFloatEps * std::abs(dh_TF[i] * up) * s * (1 + std::abs(gate) * (1 - s))};
    const double dup = dh_TF[i] * gate * s;
    dgate_up_TF2[at + F] = {dup, kSiluRoundings * kFloatEps * std::abs(dup)};
  }
  return dgate_up_TF2;
}

}  // namespace tessera
