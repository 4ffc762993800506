// Whether two threads per core multiply faster than one, measured: they share a tile unit, L1 and L2, but one
// may compute while the other waits for memory.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "platform/cpu.h"

namespace tessera {

struct ThreadCalibration {
  // A second thread per core has to be worth more than what a shared machine's speed moves by from one
  // moment to the next.
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

// From the speeds of each round. The speedup is the smaller of two: the median of the rounds' ratios, which
// one lucky round does not move, and the ratio of the best rounds, which other programs on the machine do not
// move as long as they leave one alone.
ThreadCalibration judge_rounds(int64_t num_cores, std::span<const double> one_per_core, int64_t num_cpus,
                               std::span<const double> two_per_core);

// A product with weights from memory on all threads, by turns with one thread per core and with one per
// processor of the mask, on pools of its own: about 50 ms. Nothing, and no time, where no core has two
// processors in the mask, where a cgroup limit has no time for them, or where only the reference kernel runs.
std::optional<ThreadCalibration> calibrate_threads(const CpuLimits& limits);

}  // namespace tessera
