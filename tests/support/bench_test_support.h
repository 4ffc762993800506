// Shortest measurements and the smallest training step, for the tests of benchmarks.
#pragma once

#include "bench/measure.h"
#include "bench/step/train_step_bench.h"

namespace tessera {

inline MeasureOptions shortest(int64_t rounds = 1) {
  MeasureOptions options;
  options.seconds = 0;
  options.min_rounds = rounds;
  options.turn_seconds = 1e-4;
  options.cold_bytes = 1;
  return options;
}

inline TrainStepOptions tiny_step() {
  TrainStepOptions options;
  options.name = "15m";
  options.config = preset_config("15m");
  options.config.num_hidden_layers = 2;
  options.config.sliding_window = {0, 0};
  options.config.vocab_size = 100;
  options.max_length = 9;
  options.micro_batch = 2;
  options.gradient_accumulation_steps = 3;
  return options;
}

}  // namespace tessera
