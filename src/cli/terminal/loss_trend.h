// Which way the loss of a run goes.
#pragma once

#include <deque>
#include <optional>

namespace tessera {

enum class Trend { kUnknown, kFalling, kLevel, kRising };

// Compares the newer half of the last steps with the older half.
class LossTrend {
 public:
  void add(double loss);

  // How much the mean has changed from the older half to the newer one; nullopt before there are enough
  // steps.
  std::optional<double> change() const;
  // kLevel if the change may well be noise: less than two standard errors.
  Trend trend() const;

 private:
  struct Change {
    double value;
    double standard_error;
  };
  std::optional<Change> measured() const;

  std::deque<double> losses_;  // finite ones
};

}  // namespace tessera
