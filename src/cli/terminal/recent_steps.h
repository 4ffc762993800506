// How fast a run is now.
#pragma once

#include <cstdint>
#include <deque>
namespace tessera {

// Medians over the last steps. The first step of a process, which touches memory and fills caches, is dropped
// once there are others: it may take several times as long.
class RecentSteps {
 public:
  void add(double tokens_per_second, double tflops);

  double tokens_per_second() const { return median(&Step::tokens_per_second); }
  double tflops() const { return median(&Step::tflops); }

 private:
  struct Step {
    double tokens_per_second;
    double tflops;
  };

  double median(double Step::*field) const;

  std::deque<Step> steps_;
  int64_t num_seen_ = 0;
};

}  // namespace tessera
