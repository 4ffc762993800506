// Robust statistics of repeated measurements: on a shared machine single figures mean nothing and means
// follow the outliers.
#pragma once

#include <span>
#include <vector>

namespace tessera {

struct Quartiles {
  double q1 = 0;
  double median = 0;
  double q3 = 0;
};

// Linear interpolation between order statistics (type 7 of Hyndman and Fan, 1996; the default of R and
// NumPy). At least one value.
Quartiles quartiles(std::span<const double> values);

// numerators[i] / denominators[i]: what two participants achieved in the same round, when the machine was in
// the same state. Sizes are equal.
std::vector<double> paired_ratios(std::span<const double> numerators, std::span<const double> denominators);

}  // namespace tessera
