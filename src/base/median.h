// The median of measurements.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

namespace tessera {

// The upper one of the two middle values if their number is even. At least one value. Reorders them.
inline double median_in_place(std::span<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

inline double median(std::vector<double> values) { return median_in_place(values); }

}  // namespace tessera
