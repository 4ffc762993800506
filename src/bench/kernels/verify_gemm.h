// Compares samples of matrix products with float64.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/kernels/verify.h"
#include "tensor/tensor_view.h"

namespace tessera {

// out_ij = former_ij + sum_k a_ik b_jk, with a and b read through strides so that one form covers the three
// products of a linear layer:
//   forward          y_tn:  a = x [T, K],      b = w [N, K]
//   backward_input   dx_tk: a = dy [T, N],     b = w^T: b_kn = w_nk
//   backward_weight  dw_nk: a = dy^T,          b = x^T
struct StridedMatrix {
  ConstTensorView values;
  int64_t row_stride;
  int64_t column_stride;

  double at(int64_t row, int64_t column) const;
};

// Positions (row, column) spread over [rows, columns], including all corners, the same in every run.
struct SamplePoint {
  int64_t row;
  int64_t column;
};
std::vector<SamplePoint> sample_points(int64_t rows, int64_t columns, int64_t count);

// Compares out_ij at the points, within the bound of gemm.h. `former` holds the values at the points before
// the call (empty = overwritten).
void verify_product(Verifier& verifier, const StridedMatrix& a, const StridedMatrix& b, int64_t num_terms,
                    ConstTensorView out, const std::vector<SamplePoint>& points,
                    const std::vector<double>& former);

}  // namespace tessera
