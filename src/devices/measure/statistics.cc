#include "devices/measure/statistics.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"

namespace tessera {

Quartiles quartiles(std::span<const double> values) {
  TESSERA_CHECK(!values.empty(), "quartiles of nothing");
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const auto at = [&](double fraction) {
    const double position = fraction * static_cast<double>(sorted.size() - 1);
    const double below = std::floor(position);
    const auto index = static_cast<size_t>(below);
    const double above = sorted[std::min(index + 1, sorted.size() - 1)];
    return sorted[index] + (position - below) * (above - sorted[index]);
  };
  return {at(0.25), at(0.5), at(0.75)};
}

std::vector<double> paired_ratios(std::span<const double> numerators, std::span<const double> denominators) {
  TESSERA_CHECK(numerators.size() == denominators.size(), "{} numerators, {} denominators", numerators.size(),
                denominators.size());
  std::vector<double> ratios;
  for (size_t i = 0; i < numerators.size(); ++i) ratios.push_back(numerators[i] / denominators[i]);
  return ratios;
}

}  // namespace tessera
