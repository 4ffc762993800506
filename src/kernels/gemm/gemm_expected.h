// The products of gemm.h in float64, with its error bounds.
#pragma once

#include "kernels/expected.h"

namespace tessera {

// A matrix, or its transpose, as a factor of one of the three products of a linear layer:
//   out_ij = former_ij + sum_l a_il b_jl
//     forward          y_TN:  a = x,    b = w       former: the bias in every row
//     backward_input   dx_TK: a = dy,   b = w^T
//     backward_weight  dw_NK: a = dy^T, b = x^T
struct Factor {
  ConstTensorView matrix;
  bool transposed = false;

  std::vector<double> row(int64_t i) const {
    return transposed ? values_at(matrix, range(0, matrix.dim(0)), {&i, 1}) : rows_of(matrix, {&i, 1});
  }
  int64_t num_rows() const { return matrix.dim(transposed ? 1 : 0); }
};

inline Expected expected_product(std::span<const double> a_L, std::span<const double> b_L, double former) {
  const auto term = [a = a_L.data(), b = b_L.data()](size_t l) { return a[l] * b[l]; };
  return expected_sum(a_L.size(), former, term);
}

}  // namespace tessera
