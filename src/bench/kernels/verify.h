// Compares samples of the results with what NAME_expected.h expects of a kernel, before a benchmark measures
// anything: a fast kernel that is wrong is worthless.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/bench_line.h"
#include "kernels/attention/attention_shape.h"
#include "kernels/expected.h"
#include "kernels/gemm/gemm_expected.h"
#include "tensor/tensor_view.h"

namespace tessera {

// Counts comparisons and fails on the first wrong one.
class Verifier {
 public:
  // `what` names operation, shape and implementation in errors; comparisons are added to `result`.
  Verifier(std::string what, Verification& result) : what_(std::move(what)), result_(result) {}

  // Error(kInternal) naming what, `place`, expected, got and bound unless |got - expected| <= bound. NaN
  // always fails.
  void compare(const char* tensor, int64_t row, int64_t column, double got, double expected, double bound);
  // Compares rows of `got`, or some columns of these, within the bounds after rounding to its type.
  void compare_rows(const char* tensor, ConstTensorView got, std::span<const int64_t> rows,
                    std::span<const Expected> expected);
  void compare_values(const char* tensor, ConstTensorView got, std::span<const int64_t> rows,
                      std::span<const int64_t> columns, std::span<const Expected> expected);

 private:
  std::string what_;
  Verification& result_;
};

// Indices spread over [0, size), including first and last, ascending and the same in every run; all of them
// if there are at most `count`.
std::vector<int64_t> sample_indices(int64_t size, int64_t count);

// The sum of the squares of x (F32), in double.
void verify_sum_of_squares(Verifier& verifier, ConstTensorView x, double got);

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

// Checks o and lse for a sample of queries and heads.
void verify_attention(Verifier& verifier, ConstTensorView qkv_TQ, const AttentionShape& shape,
                      std::span<const int32_t> cu_seqlens, ConstTensorView o_THE, ConstTensorView lse_HT);

// Checks dq for a sample of queries and heads, dk and dv for a sample of keys.
void verify_attention_backward(Verifier& verifier, ConstTensorView do_THE, ConstTensorView qkv_TQ,
                               ConstTensorView o_THE, ConstTensorView lse_HT, const AttentionShape& shape,
                               std::span<const int32_t> cu_seqlens, ConstTensorView dqkv_TQ);

}  // namespace tessera
