// Ranges of the values of flags.
#pragma once

#include <cmath>
#include <limits>
#include <string>

#include "base/flags.h"

namespace tessera {

// Values in [minimum, maximum]; below `maximum` only when `open_end`, above `minimum` only when `open_begin`.
// NaN and infinities are outside.
struct Range {
  static constexpr double kInfinity = std::numeric_limits<double>::infinity();
  double minimum = -kInfinity;
  double maximum = kInfinity;
  bool open_begin = false;
  bool open_end = false;

  bool contains(double value) const {
    if (!std::isfinite(value)) return false;
    return (open_begin ? value > minimum : value >= minimum) &&
           (open_end ? value < maximum : value <= maximum);
  }
  std::string describe() const;
};

constexpr Range at_least(double minimum) { return {minimum}; }
constexpr Range above(double minimum) { return {minimum, Range::kInfinity, true}; }

// Refuses values outside `range` as they are set.
void limit(Flag& flag, const Range& range);

// A whole number of steps, or a fraction of all steps if below 1; 0 only if `allow_zero`.
void limit_steps(Flag& flag, bool allow_zero);

}  // namespace tessera
