#include "bench/kernels/verify_gemm.h"

#include <algorithm>

#include "base/rng.h"

namespace tessera {

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

std::vector<double> values_at(ConstTensorView matrix, const std::vector<SamplePoint>& points) {
  std::vector<double> values;
  for (const auto& [row, column] : points) values.push_back(element(matrix, row * matrix.dim(1) + column));
  return values;
}

void verify_product(Verifier& verifier, const Factor& a, const Factor& b, ConstTensorView out,
                    const std::vector<SamplePoint>& points, const std::vector<double>& former) {
  for (size_t i = 0; i < points.size(); ++i) {
    const auto& [row, column] = points[i];
    const Expected expected = expected_product(a.row(row), b.row(column), former.empty() ? 0 : former[i]);
    verifier.compare_values("out", out, {&row, 1}, {&column, 1}, {&expected, 1});
  }
}

}  // namespace tessera
