#include "bench/kernels/verify_gemm.h"

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "bench/kernels/random_tensor.h"

namespace tessera {

double StridedMatrix::at(int64_t row, int64_t column) const {
  return element(values, row * row_stride + column * column_stride);
}

std::vector<SamplePoint> sample_points(int64_t rows, int64_t columns, int64_t count) {
  std::vector<SamplePoint> points = {{0, 0}, {0, columns - 1}, {rows - 1, 0}, {rows - 1, columns - 1}};
  const CounterRng rng(11, 0);
  const auto pick = [&](uint64_t index, int64_t size) {
    return std::min(
        size - 1, static_cast<int64_t>(static_cast<double>(rng.uniform(index)) * static_cast<double>(size)));
  };
  while (static_cast<int64_t>(points.size()) < count) {
    const auto index = 2 * static_cast<uint64_t>(points.size());
    points.push_back({pick(index, rows), pick(index + 1, columns)});
  }
  return points;
}

void verify_product(Verifier& verifier, const StridedMatrix& a, const StridedMatrix& b, int64_t num_terms,
                    ConstTensorView out, const std::vector<SamplePoint>& points,
                    const std::vector<double>& former) {
  for (size_t i = 0; i < points.size(); ++i) {
    const auto [row, column] = points[i];
    double expected = former.empty() ? 0 : former[i];
    double magnitude = std::abs(expected);
    for (int64_t k = 0; k < num_terms; ++k) {
      const double term = a.at(row, k) * b.at(column, k);
      expected += term;
      magnitude += std::abs(term);
    }
    const double bound = static_cast<double>(num_terms + 2) * kFloatEps * magnitude +
                         rounding_error(out.dtype()) * std::abs(expected);
    verifier.compare("out", row, column, element(out, row * out.dim(1) + column), expected, bound);
  }
}

}  // namespace tessera
