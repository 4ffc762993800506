// A run with checkpoints, for tests of resuming.
#pragma once

#include <atomic>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/train/train_test_support.h"

namespace tessera {

// The content of metrics.jsonl and of the log, without times.
std::vector<nlohmann::json> metrics_of(const std::filesystem::path& output);
nlohmann::json history_of(const std::filesystem::path& folder);
// All weights and the optimizer's state: every safetensors file by its name.
std::map<std::string, std::string> tensor_files(const std::filesystem::path& folder);

// A run of 6 steps over two epochs of 14 rows, in shuffled order, with a checkpoint after every step. Copies
// share model and data.
class SavingRun {
 public:
  explicit SavingRun(const Ranks& run_ranks = {}, const ModelConfig& config = tiny_config())
      : tiny_(std::make_shared<TinyRun>(config)), spec(tiny_->spec), ranks(run_ranks) {
    spec.data.shuffle = true;
    spec.batch.rows_per_device = 1;
    spec.batch.accumulation_steps = 4 / ranks.world_size();
    spec.schedule.form = CosineSchedule();
    spec.saving.strategy = SaveStrategy::kSteps;
    spec.saving.steps = 1;
    spec.reporting.logging_steps = 2;
    spec.sharding.stage = 2;
    spec.optimizer.beta2 = 0.9;
  }

  const TestFolder& folder() const { return tiny_->folder(); }
  std::filesystem::path output() const { return spec.output_dir; }

  // Returns what rank 0 observed.
  RecordingObserver run(const std::function<int(int rank)>& stop_signal = {},
                        const std::function<void(const StepMetrics&)>& after_step = {}) const;
  // SIGTERM reaches rank 0 after `num_steps` steps of this process.
  RecordingObserver run_until_signal(int64_t num_steps) const {
    std::atomic<int64_t> done = 0;
    return run([&](int rank) { return rank == 0 && done >= num_steps ? SIGTERM : 0; },
               [&](const StepMetrics&) { ++done; });
  }

  // Simulates a crash after step `step`: a new output folder with the files as of that step and, in
  // metrics.jsonl, one more step and half a line.
  void interrupt_at(int64_t step, const std::string& name);

 private:
  std::shared_ptr<TinyRun> tiny_;

 public:
  RunSettings spec;
  Ranks ranks;
};

// Losses on the rows of a run of LoRA at its end, with its adapters and with these merged into its model in
// float32.
struct MergedLosses {
  double adapted = 0, merged = 0;
};
MergedLosses train_and_merge(SavingRun run);

// Compares weights, metrics, log and state up to checkpoint-6.
void expect_same_run(const std::filesystem::path& found, const std::filesystem::path& expected);

// Crashes `run`, which is over, after each of these steps, resumes it, and compares the two.
void expect_resumes_alike(const SavingRun& run, const std::vector<int64_t>& steps);

// Every step of `found`, of which there are some, has the tokens of the same step of `expected`, and its loss
// up to a relative difference: 1e-5 in float32, 5e-3 otherwise.
void expect_near_losses(const RecordingObserver& found, const RecordingObserver& expected, DType dtype);

}  // namespace tessera
