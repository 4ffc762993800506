// A small training step, to measure the time of operations within a step: the real kernels on the first
// layers of a model with random weights, with caches as warm as in training, on all ranks of a node at
// once.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "forecast/time/op_costs.h"
#include "optim/optimizer.h"
#include "platform/cpu.h"

namespace tessera {

struct SampleRequest {
  ModelConfig config;  // with few layers
  DType dtype = DType::kBF16;
  std::vector<PassShape> passes;  // of a step, in order
  RankShare share;
  OptimizerForm optimizer = OptimizerForm::kAdamW;
  double seconds = 1;     // steps are repeated for so long ...
  int64_t min_steps = 3;  // ... and so often, after a first one that does not count

  // For all ranks together.
  int64_t memory_bytes() const;
};

// Mean seconds of the middle half of the steps.
struct SampledStep {
  std::map<OpWork, double> call_s;  // with the model's code in front of a call
  double update_s_per_byte = 0;     // UpdateWork::bytes()
  double sum_s_per_element = 0;     // of a rank's share of the gradients, overwriting
  double add_s_per_element = 0;     // adding
  double imbalance = 0;             // what ranks wait for one another, relative to their operations
};

// Starts a thread with a pool of its own for every rank. Error(kBadConfig) if memory is too short.
SampledStep sample_step(const SampleRequest& request, const CpuLimits& limits = cpu_limits());

}  // namespace tessera
