// Totals over the steps of a run, for its summary.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"
#include "comm/network/network_group.h"
#include "report/observer.h"

namespace tessera {

// `sums` over all ranks.
NetworkUse network_use(const NetworkCounters& sums, int world_size);

// Adds the time of its scope to `*seconds`.
class AddedTime {
 public:
  explicit AddedTime(double* seconds) : seconds_(seconds) {}
  ~AddedTime() { *seconds_ += time_.seconds(); }
  AddedTime(const AddedTime&) = delete;
  AddedTime& operator=(const AddedTime&) = delete;

 private:
  double* seconds_;
  Stopwatch time_;
};

class RunTotals {
 public:
  void add(const StepMetrics& metrics);
  void add(const CheckpointUse& checkpoint);
  int64_t num_steps() const { return num_steps_; }
  int64_t num_tokens() const { return num_tokens_; }
  const StepMetrics& last_step() const { return last_step_; }

  double runtime_s() const { return run_time_.seconds(); }  // since this was made
  // Complete except for total_s and for what happens between steps, which is for the caller to add.
  RunTimes& times() { return times_; }
  const RunTimes& times() const { return times_; }
  // Over the steps alone, without evaluation and saving.
  double tokens_per_second() const;
  double tflops() const;
  // Mean of a step, without the first one, which gathers less; with several nodes and more than one step.
  std::optional<NetworkUse> network() const;
  DiskUse disk() const;  // mean of a step

 private:
  double step_s() const;

  Stopwatch run_time_;
  StepMetrics last_step_;
  int64_t num_steps_ = 0;
  int64_t num_tokens_ = 0;
  RunTimes times_;
  double flops_ = 0;
  bool has_network_ = false;
  NetworkUse network_;  // sums from the second step on; `hidden` is in seconds
  DiskUse disk_;
};

}  // namespace tessera
