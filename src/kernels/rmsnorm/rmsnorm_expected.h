// The formulas of rmsnorm.h in float64, with error bounds.
#pragma once

#include "kernels/expected.h"

namespace tessera {

// Relative error of a float32 sum of n terms over at least 4 lanes, plus a few roundings around it.
inline double norm_sum_error(size_t n) { return (static_cast<double>(n) / 4 + 12) * kFloatEps; }

struct ExpectedNorm {
  std::vector<Expected> y_RD, rstd_R;
};

inline ExpectedNorm expected_rmsnorm(std::span<const double> x_RD, std::span<const double> w_D, double eps) {
  const size_t D = w_D.size();
  ExpectedNorm expected;
  for (size_t begin = 0; begin < x_RD.size(); begin += D) {
    const std::span<const double> x = x_RD.subspan(begin, D);
    const double sum = std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
    const double rstd = 1 / std::sqrt(sum / static_cast<double>(D) + eps);
    expected.rstd_R.push_back({rstd, rstd * norm_sum_error(D)});
    for (size_t i = 0; i < D; ++i) {
      const double y = w_D[i] * x[i] * rstd;
      expected.y_RD.push_back({y, std::abs(y) * norm_sum_error(D)});
    }
  }
  return expected;
}

// dx_RD, added to former_RD unless that is empty.
inline std::vector<Expected> expected_rmsnorm_backward(std::span<const double> dy_RD,
                                                       std::span<const double> x_RD,
                                                       std::span<const double> w_D,
                                                       std::span<const double> rstd_R,
                                                       std::span<const double> former_RD) {
  const size_t D = w_D.size();
  std::vector<Expected> dx_RD;
  for (size_t r = 0; r < rstd_R.size(); ++r) {
    const std::span<const double> dy = dy_RD.subspan(r * D, D), x = x_RD.subspan(r * D, D);
    double mean = 0, mean_abs = 0;
    for (size_t i = 0; i < D; ++i) {
      const double term = dy[i] * w_D[i] * x[i] / static_cast<double>(D);
      mean += term;
      mean_abs += std::abs(term);
    }
    for (size_t i = 0; i < D; ++i) {
      const double g = dy[i] * w_D[i], projection = x[i] * rstd_R[r] * rstd_R[r];
      const double former = former_RD.empty() ? 0 : former_RD[r * D + i];
      const double dx = former + rstd_R[r] * (g - projection * mean);
      const double bound = std::abs(rstd_R[r]) * (std::abs(g) * 6 * kFloatEps +
                                                  std::abs(projection) * mean_abs * norm_sum_error(D));
      dx_RD.push_back({dx, bound + (former_RD.empty() ? 0 : kFloatEps * std::abs(dx))});
    }
  }
  return dx_RD;
}

// dw_D, added to former_D unless that is empty; D may be some of the columns.
inline std::vector<Expected> expected_rmsnorm_dw(std::span<const double> dy_RD, std::span<const double> x_RD,
                                                 std::span<const double> rstd_R,
                                                 std::span<const double> former_D) {
  const size_t R = rstd_R.size(), D = dy_RD.size() / R;
  std::vector<Expected> dw_D;
  for (size_t i = 0; i < D; ++i) {
    const auto term = [&](size_t r) { return dy_RD[r * D + i] * x_RD[r * D + i] * rstd_R[r]; };
    dw_D.push_back(expected_sum(R, former_D.empty() ? 0 : former_D[i], term));
  }
  return dw_D;
}

}  // namespace tessera
