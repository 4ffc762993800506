// For tests of training: model folders, datasets of token ids, an observer that records everything.
#pragma once

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "support/model_test_support.h"
#include "test_folder.h"
#include "train/trainer.h"

namespace tessera {

// A model folder with random weights (random_weights).
void write_test_model(const std::filesystem::path& folder, const ModelConfig& config, float scale = 0.3f,
                      uint64_t seed = 1, DType save_dtype = DType::kF32);

// input_ids and labels as I64 [rows, length]; all rows have one length.
void write_token_rows(const std::filesystem::path& file, const std::vector<TokenRow>& rows);

// Every tensor of a safetensors file, model folder or adapter folder, as float32.
std::map<std::string, std::vector<float>> read_tensors(const std::filesystem::path& path);

// |found - expected| / |expected|, Frobenius.
double relative_error(const std::vector<float>& found, const std::vector<float>& expected);

// The JSON objects of a .jsonl file.
std::vector<nlohmann::json> read_json_lines(const std::filesystem::path& file);
nlohmann::json read_json(const std::filesystem::path& file);

class RecordingObserver : public TrainObserver {
 public:
  void on_plan(const RunPlan& run_plan) override { plan = run_plan; }
  void on_resume(const std::filesystem::path&, int64_t step, const std::string& different) override {
    resumed_step = step;
    differences = different;
  }
  void on_resume_from_memory(const std::string& nodes, int64_t step, const std::string& different) override {
    resumed_step = step;
    resumed_from = nodes;
    differences = different;
  }
  void on_previous_run(const std::filesystem::path& folder) override { previous_run = folder; }
  void on_step(const StepMetrics& metrics) override {
    steps.push_back(metrics);
    if (after_step) after_step(metrics);
  }
  void on_log(const LogEntry& entry) override { logs.push_back(entry); }
  void on_evaluation(const std::string&, const EvalResult& result) override { evaluations.push_back(result); }
  void on_checkpoint(const CheckpointUse& checkpoint) override { checkpoints.push_back(checkpoint.folder); }
  void on_checkpoint_failed(const std::filesystem::path&, const std::string& message) override {
    failures.push_back(message);
  }
  void on_finish(const TrainSummary& run_summary) override { summary = run_summary; }

  std::function<void(const StepMetrics&)> after_step;  // before anything is saved
  RunPlan plan;
  int64_t resumed_step = -1;
  std::string resumed_from;  // nodes whose memory held the state; "" = a checkpoint
  std::string differences;
  std::filesystem::path previous_run;
  std::vector<StepMetrics> steps;
  std::vector<LogEntry> logs;
  std::vector<EvalResult> evaluations;
  std::vector<std::filesystem::path> checkpoints;
  std::vector<std::string> failures;
  TrainSummary summary;
};

std::vector<double> losses_of_steps(const RecordingObserver& run);

// A folder with a tiny model and 14 rows of 9 tokens, and settings to train on them in float32: micro-batch
// 2, accumulation 2, in order, constant learning rate.
class TinyRun {
 public:
  explicit TinyRun(const ModelConfig& config = tiny_config());

  const TestFolder& folder() const { return folder_; }
  std::filesystem::path output() const { return spec.output_dir; }
  // Trains with `spec`.
  RecordingObserver train(int64_t num_threads = 2, const std::function<int()>& stop_signal = {},
                          const std::function<void(const StepMetrics&)>& after_step = {}) const;

  // Trains with two threads until the run dies after this step.
  void train_and_die_after(int64_t step) const;

  RunSettings spec;

 private:
  TestFolder folder_;
};

// The number of ranks that train, and their nodes.
struct Ranks {
  int num_nodes = 1;
  int local_world_size = 1;
  int world_size() const { return num_nodes * local_world_size; }
};

// Ranks and how their parameters are sharded.
struct RanksCase {
  Ranks ranks;
  int64_t stage;
  std::string schedule;

  std::string name() const {
    return fmt::format("{}x{}stage{}{}", ranks.num_nodes, ranks.local_world_size, stage, schedule);
  }
  friend void PrintTo(const RanksCase& of, std::ostream* out) { *out << of.name(); }
};
// Several nodes with one and two ranks each, under every stage and schedule.
std::vector<RanksCase> cases_of_several_nodes();

// Runs body(comm) on every rank of a job, each rank a thread with its own communicator; throws the error of
// the first rank that has one. Nodes of the job differ only in their number. `slots_of` supplies
// World::snapshot_slots.
void run_ranks(const Ranks& ranks, const std::function<void(Communicator& comm)>& body, int restart_count = 0,
               const std::function<std::vector<int>(const World& world)>& slots_of = {});

// Trains as a job of ranks that are threads, each with its own thread pool. Returns what each has recorded.
std::vector<RecordingObserver> train_ranks(const RunSpec& spec, const Ranks& ranks,
                                           int64_t threads_per_rank = 1,
                                           const std::function<int(int rank)>& stop_signal = {},
                                           const std::function<void(const StepMetrics&)>& after_step = {});

// Expects the same run up to the order of sums in float32: in the weights of two output folders, and in the
// reports of steps.
void expect_close_weights(const std::filesystem::path& found, const std::filesystem::path& expected);
void expect_same_numbers(const RecordingObserver& found, const RecordingObserver& expected);

}  // namespace tessera
