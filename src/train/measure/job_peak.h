// The arithmetic peak of all ranks together, which MFU is a share of.
#pragma once

#include <optional>
#include <span>

#include "comm/communicator.h"
#include "devices/measure/training_peak.h"
#include "platform/thread_pool.h"
#include "report/observer.h"
#include "tensor/dtype.h"

namespace tessera {

class JobPeak {
 public:
  // Collective: all ranks measure at the same time, each on its own processors. `measures` is the setting
  // measure_peak; the peak is known only if every rank has one. `comm` and `pool` must outlive this.
  JobPeak(bool measures, Ops& ops, ThreadPool& pool, DType dtype, Communicator& comm);

  // The peak that the ranks reached together at the start, in this rank's fastest instruction set.
  const std::optional<ComputePeak>& at_start() const { return at_start_; }

  // A rank's report after a step, and the reports of all ranks.
  struct Share {
    double tflops = 0;    // best so far
    bool is_due = false;  // rank 0 wants another measurement
  };
  Share share() const;
  void take_shares(std::span<const Share> by_rank);
  // To be called on all ranks before step `step` (from 1): measures if rank 0 wants it.
  void measure_if_due(int64_t step);

  std::optional<BestPeak> best() const;
  // Model FLOPs utilization at this rate.
  std::optional<double> share_of_peak(double tflops) const;

 private:
  Communicator& comm_;
  std::optional<TrainingPeak> peak_;  // of this rank, if every rank has one
  std::optional<ComputePeak> at_start_;
  double tflops_ = 0;  // of all ranks, each at its best
  bool is_due_ = false;
};

}  // namespace tessera
