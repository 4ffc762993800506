// Measures whether two threads per core multiply faster than one: they share a tile unit, L1 and L2, but one
// can compute while the other waits for memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "platform/cpu.h"

namespace tessera {

struct ThreadCalibration {
  // A second thread per core must gain more than a shared machine's speed fluctuates from moment to moment.
  static constexpr double kMinSpeedup = 1.1;

  struct Side {
    int64_t num_threads;
    double tflops;  // of its best round
  };
  Side one_per_core, two_per_core;
  double speedup;  // two_per_core over one_per_core

  int64_t num_threads() const {
    return speedup >= kMinSpeedup ? two_per_core.num_threads : one_per_core.num_threads;
  }
  // "16 threads 18.2 TFLOPS, 32 threads 12.1, 0.66 times as fast".
  std::string describe() const;
};

// Judges by the speeds of each round. The speedup is the smaller of two figures: the median of the rounds'
// ratios, which one lucky round does not affect, and the ratio of the best rounds, which other programs on
// the machine do not affect as long as they leave one round undisturbed.
ThreadCalibration judge_rounds(int64_t num_cores, std::span<const double> one_per_core, int64_t num_cpus,
                               std::span<const double> two_per_core);

// Times a product with weights from memory on all threads, alternating between one thread per core and one
// per processor in the mask, on its own pools: about 50 ms. Returns nullopt at once if no core has two
// processors in the mask, if a cgroup limit leaves no time for them, or if only the reference kernel runs.
std::optional<ThreadCalibration> calibrate_threads(const CpuLimits& limits);

}  // namespace tessera
