// How fast a run is now, and how long the rest of it will take.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "train/observer.h"

namespace tessera {

// Medians over the last steps. The first step of a process, which touches memory and fills caches, is dropped
// once there are others: it may take several times as long.
class RecentSteps {
 public:
  void add(const StepMetrics& metrics);

  double tokens_per_second() const { return median(&Step::tokens_per_second); }
  double tflops() const { return median(&Step::tflops); }
  // Time for `num_steps` more steps; nullopt until enough steps have been seen.
  std::optional<double> seconds_for(int64_t num_steps) const;

 private:
  struct Step {
    double time_s;
    double tokens_per_second;
    double tflops;
  };

  double median(double Step::*field) const;

  std::deque<Step> steps_;
  int64_t num_seen_ = 0;
};

}  // namespace tessera
