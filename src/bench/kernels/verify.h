// Compares samples of the results with what NAME_expected.h expects of a kernel, before a benchmark measures
// anything: a fast kernel that is wrong is worthless.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "bench/bench_line.h"
#include "kernels/expected.h"
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
  // The same for rows of `got`, or for some columns of these, within the bounds after rounding to its type.
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
}  // namespace tessera
