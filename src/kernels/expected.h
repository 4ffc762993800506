// The expected results of kernels, for their tests and for benchmarks, which verify before they time: the
// formulas in float64, and the error bound of a kernel that computes in float32. NAME_expected.h has those of
// one kernel; they take values as flat arrays, row by row.
#pragma once

#include <cmath>
#include <concepts>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "kernels/activation_type.h"
#include "tensor/tensor_view.h"

namespace tessera {

inline constexpr double kFloatEps = 0x1.0p-24;  // half the spacing of float32 at 1: the rounding error
inline constexpr double kBf16Eps = 0x1.0p-8;

// The relative error of rounding once to `dtype`.
inline double rounding_error(DType dtype) { return dtype == DType::kBF16 ? kBf16Eps : kFloatEps; }

// An exact result, and the error of a kernel before it rounds its own to the type of the output.
struct Expected {
  double value = 0;
  double bound = 0;

  // The error after that rounding. The smallest normal float32 covers results that underflow.
  double bound_in(DType dtype) const {
    return bound + rounding_error(dtype) * (std::abs(value) + bound) + 0x1.0p-126;
  }
};

// start + the sum of term(0) ... term(count - 1), each a product of at most two factors, added in float32 in
// any order (Higham, Accuracy and Stability of Numerical Algorithms, 3.1).
template <std::integral Count, typename Term>
Expected expected_sum(Count count, double start, const Term& term) {
  Expected sum = {start, std::abs(start)};
  for (Count i = 0; i < count; ++i) {
    const double value = term(i);
    sum.value += value;
    sum.bound += std::abs(value);
  }
  sum.bound *= static_cast<double>(count + 2) * kFloatEps;
  return sum;
}

inline int64_t row_width(ConstTensorView matrix) {
  return matrix.dim(0) == 0 ? 0 : matrix.num_elements() / matrix.dim(0);
}

// begin ... end - 1.
inline std::vector<int64_t> range(int64_t begin, int64_t end) {
  std::vector<int64_t> indices(static_cast<size_t>(end - begin));
  std::iota(indices.begin(), indices.end(), begin);
  return indices;
}

// Element i of a tensor, BF16 or F32.
inline double element(const ConstTensorView& tensor, int64_t i) {
  return tensor.dtype() == DType::kBF16 ? to_float(tensor.as<bf16>()[i]) : tensor.as<float>()[i];
}

inline void set_element(const TensorView& tensor, int64_t i, float value) {
  if (tensor.dtype() == DType::kBF16) {
    tensor.as<bf16>()[i] = to_bf16(value);
  } else {
    tensor.as<float>()[i] = value;
  }
}

// The elements in these rows and columns of a matrix, row by row; a tensor of one dimension is a column.
inline std::vector<double> values_at(ConstTensorView matrix, std::span<const int64_t> rows,
                                     std::span<const int64_t> columns) {
  const int64_t width = row_width(matrix);
  std::vector<double> values;
  values.reserve(rows.size() * columns.size());
  with_activation_type(matrix.dtype(), [&]<typename A>(A) {
    const A* const elements = matrix.as<A>();
    for (const int64_t row : rows) {
      for (const int64_t column : columns) values.push_back(to_float(elements[row * width + column]));
    }
  });
  return values;
}

// All columns of these rows.
inline std::vector<double> rows_of(ConstTensorView matrix, std::span<const int64_t> rows) {
  return values_at(matrix, rows, range(0, row_width(matrix)));
}

inline std::vector<double> values_of(ConstTensorView tensor) {
  return rows_of(tensor, range(0, tensor.dim(0)));
}

}  // namespace tessera
