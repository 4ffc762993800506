// Compares results with float64 on samples before a benchmark measures anything: a fast kernel that is wrong
// is worthless.
//
// Bounds, with eps = 2^-24 and u the rounding of the output's type (2^-8 for BF16, 0 for F32): the error of
// float32 sums in any order, plus one rounding. They are the bounds of the kernels' headers, rounded up to
// simpler forms.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/bench_line.h"
#include "kernels/attention/attention_shape.h"
#include "kernels/rope/rope.h"
#include "tensor/tensor_view.h"

namespace tessera {

inline constexpr double kFloat32Rounding = 0x1p-24;
inline double rounding_of(DType dtype) { return dtype == DType::kBF16 ? 0x1p-8 : kFloat32Rounding; }

// Counts comparisons and fails on the first wrong one.
class Verifier {
 public:
  // `what` names operation, shape and implementation in errors; comparisons are added to `result`.
  Verifier(std::string what, Verification& result) : what_(std::move(what)), result_(result) {}

  // Error(kInternal) naming what, `place`, expected, got and bound unless |got - expected| <= bound. NaN
  // always fails.
  void compare(const char* tensor, int64_t row, int64_t column, double got, double expected, double bound);

 private:
  std::string what_;
  Verification& result_;
};

// Indices spread over [0, size), including first and last, ascending and the same in every run; all of them
// if there are at most `count`.
std::vector<int64_t> sample_indices(int64_t size, int64_t count);

// A row as float64.
using Row = std::vector<double>;
Row row_of(ConstTensorView matrix, int64_t row);
// Copies rows before a call that works in place.
std::vector<Row> rows_of(ConstTensorView matrix, std::span<const int64_t> rows);

// Each takes the inputs of one row as they were before the call, and the outputs of the call. `row` is the
// row number for the message, `dtype` the type of the rounded outputs.
//
// y = x rstd w
void verify_rmsnorm(Verifier& verifier, int64_t row, const Row& x, const Row& w, double eps, const Row& y,
                    double rstd, DType dtype);
// dx = former + rstd (g - x rstd^2 mean(g x)), g = dy w; `former` empty = overwritten
void verify_rmsnorm_backward(Verifier& verifier, int64_t row, const Row& dy, const Row& x, const Row& w,
                             double rstd, const Row& former, const Row& dx, DType dtype);
// The sum of the squares of x (F32), in double.
void verify_sum_of_squares(Verifier& verifier, ConstTensorView x, double got);
// sum = x + y
void verify_add(Verifier& verifier, int64_t row, const Row& x, const Row& y, const Row& sum, DType dtype);
// h = silu(gate) up, gate_up = [gate | up]
void verify_swiglu(Verifier& verifier, int64_t row, const Row& gate_up, const Row& h, DType dtype);
void verify_swiglu_backward(Verifier& verifier, int64_t row, const Row& dh, const Row& gate_up,
                            const Row& dgate_up, DType dtype);
// The H query and G key heads of a row, rotated.
void verify_rope(Verifier& verifier, int64_t row, const Row& before, const AttentionShape& shape,
                 int64_t position, const RopeTable& table, bool inverse, const Row& after, DType dtype);
// dlogits = grad_scale (softmax(logits) - one_hot(target)).
void verify_cross_entropy(Verifier& verifier, int64_t row, const Row& logits, int32_t target,
                          double grad_scale, const Row& dlogits, DType dtype);
// The same for the columns of a row from first_column on.
void verify_chunk_gradient(Verifier& verifier, int64_t row, const Row& logits, double log_sum_exp,
                           int64_t first_column, int32_t target, double grad_scale, const Row& dlogits,
                           DType dtype);
// log-sum-exp of some logits, and the kernel's error bound.
struct SoftmaxBound {
  double log_sum_exp;
  double bound;
};
SoftmaxBound softmax_bound(const Row& logits);
// Sum of -log softmax(logits)[target] over all rows that have a target, and the kernel's error bound.
struct ExactLoss {
  double sum = 0;
  double bound = 0;
};
ExactLoss exact_loss(ConstTensorView logits_RV, std::span<const int32_t> targets);

}  // namespace tessera
