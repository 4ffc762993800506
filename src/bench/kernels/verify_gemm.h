// Compares samples of matrix products with gemm_expected.h.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/kernels/verify.h"
#include "kernels/gemm/gemm_expected.h"
#include "tensor/tensor_view.h"

namespace tessera {

// Positions (row, column) spread over [rows, columns], including all corners, the same in every run.
struct SamplePoint {
  int64_t row;
  int64_t column;
};
std::vector<SamplePoint> sample_points(int64_t rows, int64_t columns, int64_t count);

// The values of a matrix at the points.
std::vector<double> values_at(ConstTensorView matrix, const std::vector<SamplePoint>& points);

// Compares out_ij = former_ij + sum_l a_il b_jl at the points. `former` holds the values there before the
// call (empty = overwritten).
void verify_product(Verifier& verifier, const Factor& a, const Factor& b, ConstTensorView out,
                    const std::vector<SamplePoint>& points, const std::vector<double>& former);

}  // namespace tessera
