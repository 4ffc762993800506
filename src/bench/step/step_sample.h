// The times of a benchmark's steps, and what is made of them.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "bench/step/train_step_bench.h"

namespace tessera {

// Seconds for the parts of one step, and the peak measured during it.
struct StepSample {
  double forward = 0, head = 0, backward = 0, optimizer = 0;
  double peak_tflops = 0;
  double other_forward_backward = 0, other_optimizer = 0;  // of the other program, 0 without one
  double full_forward_backward = 0, full_whole = 0;        // training all weights, 0 without adapters

  double other_whole() const { return other_forward_backward + other_optimizer; }
  double forward_backward() const { return forward + head + backward; }
  double whole() const { return forward_backward() + optimizer; }
};

// The share of each operation in `total` seconds, and what is left ("other"), largest first.
std::vector<std::pair<std::string, double>> operation_shares(const std::map<std::string, double>& seconds,
                                                             double total);
// Fills in rounds and all figures of time and speed.
void fill_statistics(const std::vector<StepSample>& steps, TrainStepLine* line);
AgainstOther against_other(const std::string& name, const std::vector<StepSample>& steps);

template <typename Value>
Quartiles quartiles_of(const std::vector<StepSample>& steps, const Value& value) {
  std::vector<double> values;
  for (const StepSample& step : steps) values.push_back(value(step));
  return quartiles(values);
}

}  // namespace tessera
