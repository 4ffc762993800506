#include "bench/kernels/verify.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace tessera {

void Verifier::compare(const char* tensor, int64_t row, int64_t column, double got, double expected,
                       double bound) {
  const double error = std::abs(got - expected);
  if (!(error <= bound)) {
    fail(ExitCode::kInternal, "{}: {}[{}, {}] is {}, expected {} within {}: the kernel is wrong", what_,
         tensor, row, column, got, expected, bound);
  }
  ++result_.num_checked;
  if (bound > 0) result_.worst_error = std::max(result_.worst_error, error / bound);
}

void Verifier::compare_rows(const char* tensor, ConstTensorView got, std::span<const int64_t> rows,
                            std::span<const Expected> expected) {
  compare_values(tensor, got, rows, range(0, row_width(got)), expected);
}

void Verifier::compare_values(const char* tensor, ConstTensorView got, std::span<const int64_t> rows,
                              std::span<const int64_t> columns, std::span<const Expected> expected) {
  const std::vector<double> values = values_at(got, rows, columns);
  TESSERA_CHECK(values.size() == expected.size(), "{} values of {}, {} expected", values.size(), tensor,
                expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    compare(tensor, rows[i / columns.size()], columns[i % columns.size()], values[i], expected[i].value,
            expected[i].bound_in(got.dtype()));
  }
}

std::vector<int64_t> sample_indices(int64_t size, int64_t count) {
  std::vector<int64_t> indices;
  if (size <= count) {
    for (int64_t i = 0; i < size; ++i) indices.push_back(i);
    return indices;
  }
  for (int64_t i = 0; i < count; ++i) {
    // Even spacing, shifted by a varying offset so that not all indices are multiples of a block size.
    const int64_t even = i * (size - 1) / (count - 1);
    const bool inner = 0 < i && i + 1 < count;
    indices.push_back(inner ? std::min(even + i % 7, size - 2) : even);
  }
  indices.erase(std::unique(indices.begin(), indices.end()), indices.end());
  return indices;
}

void verify_sum_of_squares(Verifier& verifier, ConstTensorView x, double got) {
  const auto count = static_cast<size_t>(x.num_elements());
  double expected = 0;
  for (const float value : std::span(x.as<float>(), count))
    expected += static_cast<double>(value) * static_cast<double>(value);
  constexpr double kDoubleRounding = 0x1p-53;
  verifier.compare("sum of squares", 0, 0, got, expected,
                   static_cast<double>(count + 2) * kDoubleRounding * expected);
}

}  // namespace tessera
