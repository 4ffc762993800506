// Metrics of the run as a whole.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "monitor/metrics/exposition.h"
#include "report/observer.h"

namespace tessera {

// The trainer on rank 0 calls it; any thread may write() at the same time. Calls take a few microseconds and
// no system call but the clock's.
class RunMetrics : public TrainObserver {
 public:
  explicit RunMetrics(int world_size) : world_size_(world_size) {}

  void on_plan(const RunPlan& plan) override;
  void on_resume(const std::filesystem::path& folder, int64_t step, const std::string& differences) override;
  void on_resume_from_memory(const std::string& nodes, int64_t step, const std::string& differences) override;
  void on_step(const StepMetrics& metrics) override;
  void on_evaluation(const std::string& set, const EvalResult& result) override;
  void on_checkpoint(const CheckpointUse& checkpoint) override;
  void on_checkpoint_failed(const std::filesystem::path& folder, const std::string& message) override;
  void on_warning(const std::string& message) override;

  void write(Exposition* out) const;

 private:
  using Clock = std::chrono::steady_clock;
  static constexpr size_t kNumPhases = 9;

  // All reported values, copied in one piece for each scrape.
  struct State {
    std::optional<int64_t> max_steps;
    int64_t step = 0;
    std::optional<StepMetrics> last;  // without what it refers to
    std::vector<RankStep> ranks;
    std::vector<std::pair<std::string, double>> eval_losses;  // by evaluation set
    int64_t num_tokens = 0;
    int64_t num_skipped = 0, num_spikes = 0, num_not_finite = 0, num_warnings = 0;
    int64_t num_checkpoints = 0, num_failed_checkpoints = 0;
    std::optional<CheckpointUse> checkpoint;
    DiskUse disk;  // of all steps
    std::array<TimeHistogram, kNumPhases> phases;
    std::array<int64_t, kMemoryKinds.size()> planned_bytes{};
    std::string instruction_set;
    int64_t num_cores = 0;  // cores that reach the peak together
    Clock::time_point start = Clock::now();
    Clock::time_point checkpoint_time = start;
  };
  void write_speed(const State& state, Exposition* out) const;
  void write_ranks(const State& state, Exposition* out) const;
  void write_disk(const State& state, Exposition* out) const;
  void write_checkpoints(const State& state, Exposition* out) const;

  const int world_size_;
  mutable std::mutex mutex_;
  State state_;
};

// The clock at which `num_cores` cores reach a peak of `flops` per second; nullopt if it is not known how
// many operations of the instruction set a cycle does.
std::optional<double> clock_of_peak(const std::string& instruction_set, double flops, int64_t num_cores);

}  // namespace tessera
