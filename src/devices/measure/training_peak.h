// The arithmetic peak that a run's speed is compared with.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "ops/ops.h"
#include "platform/peak.h"
#include "platform/thread_pool.h"
#include "tensor/dtype.h"

namespace tessera {

// The fastest instruction set that products of `dtype` may use here, within TESSERA_ISA, on every thread of
// the pool. Neighbours on a shared machine can take most of a processor for the length of a measurement, so a
// run measures again now and then; the best figure counts.
class TrainingPeak {
 public:
  // Measures for about 30 ms: the median of a few short slices, alternating between the instruction sets that
  // come near the best. The pool must outlive this.
  TrainingPeak(ThreadPool& pool, DType dtype);
  // On a device with memory of its own: what products of square matrices reach there, measured once.
  TrainingPeak(Ops& ops, DType dtype);

  // The best so far; nullopt if no vector instruction set is allowed.
  std::optional<ComputePeak> best() const;
  double best_tflops() const { return best_tflops_; }  // 0 = none
  int64_t num_measurements() const { return num_measurements_; }

  // Never on a device; otherwise true after the first step, then 1, 2, 4, ... s after the last measurement,
  // up to every 20 s.
  bool is_due() const { return !meters_.empty() && since_last_.seconds() >= interval_s_; }
  // One slice of one instruction set, 4 ms. Allocates nothing, takes no lock.
  void measure_again();

 private:
  void take(size_t index, double tflops);

  std::optional<ComputePeak> of_device_;
  std::vector<ComputePeakMeter> meters_;  // of the instruction sets that come near the best
  size_t best_ = 0;                       // index into meters_
  double best_tflops_ = 0;
  int64_t num_measurements_ = 0;
  double interval_s_ = 0;
  Stopwatch since_last_;
};

}  // namespace tessera
