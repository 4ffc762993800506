// The reports of a run: the trainer calls, its caller shows. All calls come from the thread that runs the
// trainer.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "plan/run_plan.h"
#include "report/checkpoint_use.h"
#include "report/disk_use.h"
#include "report/evaluation_result.h"
#include "report/trainer_state.h"

namespace tessera {

// The arithmetic peak over all ranks, each at its best so far (TrainingPeak).
struct BestPeak {
  double tflops = 0;
  int64_t num_measurements = 0;  // on each rank
};

// Traffic between the nodes for a step: its gradients, and the weights it began with. Counts the payload of
// everything the ranks sent and received; from the second step on this is wire_bytes_per_step() over all
// nodes (the first step has its weights from disk). Losses, evaluations and saving are not counted.
struct NetworkUse {
  int64_t sent_bytes = 0;
  int64_t received_bytes = 0;
  double time_s = 0;  // with transfers in progress, mean over the ranks
  double hidden = 0;  // share of it during which the requesting rank was computing
};

// The rank that takes longest for its work; see SlowRankDetector.
struct SlowestRank {
  int rank = 0;
  double times_median = 1;
};

// The parts of a step's time. Times in a rank's passes are the mean over the ranks, later ones are rank 0's;
// the sum is the time of the step.
struct StepTimes {
  double rows_s = 0;  // choosing rows and putting them into batches
  double products_s = 0;
  double attention_s = 0;
  double elementwise_s = 0;  // OperationTimes
  double wait_s = 0;         // for other ranks and the network
  double disk_s = 0;         // waiting for offload_dir
  double optimizer_s = 0;
  double other_s = 0;

  StepTimes& operator+=(const StepTimes& more);
  // All but other_s.
  double listed_s() const;
};
// A time of a structure and its name in files and metrics.
template <typename Times>
struct NamedTime {
  const char* name;
  double Times::*seconds;
};
inline constexpr NamedTime<StepTimes> kStepTimes[] = {
    {"rows_s", &StepTimes::rows_s},           {"products_s", &StepTimes::products_s},
    {"attention_s", &StepTimes::attention_s}, {"elementwise_s", &StepTimes::elementwise_s},
    {"wait_s", &StepTimes::wait_s},           {"disk_s", &StepTimes::disk_s},
    {"optimizer_s", &StepTimes::optimizer_s}, {"other_s", &StepTimes::other_s}};
inline double StepTimes::listed_s() const {
  double sum = 0;
  for (const auto& [name, seconds] : kStepTimes) sum += seconds == &StepTimes::other_s ? 0 : this->*seconds;
  return sum;
}

// The work of one rank in a step.
struct RankStep {
  int64_t num_tokens = 0;
  double compute_s = 0;  // of its passes, without waiting
  double wait_s = 0;     // during its passes
};

// One optimizer step; a line of metrics.jsonl.
struct StepMetrics {
  int64_t step = 0;      // from 1
  double epoch = 0;      // after the step
  double loss = 0;       // sum of token losses / num_target_tokens
  double grad_norm = 0;  // before clipping
  double learning_rate = 0;
  int64_t num_tokens = 0;
  int64_t num_target_tokens = 0;
  int64_t num_micro_batches = 0;  // of a rank, as Hugging Face's Trainer has them
  double tokens_per_second = 0;
  double step_time_s = 0;  // wall time from gathering the rows to the new weights
  double tflops = 0;       // model FLOPs of the step, forward and backward, 10^12 per second of step_time_s
  StepTimes times;
  std::optional<double> eta_s;        // until the end of the run
  std::span<const RankStep> ranks;    // by rank; valid during the call
  std::optional<double> mfu;          // model FLOPs utilization: tflops / peak->tflops
  std::optional<BestPeak> peak;       // so far; nullopt without RunPlan::peak
  std::optional<NetworkUse> network;  // with several nodes
  // If offload_dir is used; the mean of the ranks in the passes, plus rank 0 after them.
  std::optional<DiskUse> disk;
  std::optional<SlowestRank> slowest_rank;  // with several ranks
  std::optional<double> replay_check_s;     // time that repeating a pass took, on rank 0
  bool loss_spike = false;                  // loss or gradient norm stands out (loss_spike_policy)
  bool skipped = false;  // loss spike or non-finite: weights and optimizer were left unchanged
  std::optional<CheckpointUse> checkpoint;  // found complete in this step
  // Training stall before this step, for snapshots of the ranks' state after the previous step.
  std::optional<double> peer_snapshot_s;
};

// Where the time of this process went, on rank 0, in seconds.
struct RunTimes {
  double total_s = 0;
  double startup_s = 0;  // opening, planning, loading
  double steps_s = 0;
  StepTimes steps;  // sums over the steps
  // Between steps. Checkpoints that are written while training continues: what training waited for them; what
  // they held up within steps is in checkpoint_stall_s alone.
  double evaluation_s = 0, checkpoint_s = 0, snapshot_s = 0;
  double checkpoint_stall_s = 0;
  double model_s = 0;  // writing the finished model
  int64_t num_steps = 0, num_evaluations = 0, num_checkpoints = 0;
};
inline constexpr NamedTime<RunTimes> kRunTimes[] = {
    {"total_s", &RunTimes::total_s},           {"startup_s", &RunTimes::startup_s},
    {"steps_s", &RunTimes::steps_s},           {"evaluation_s", &RunTimes::evaluation_s},
    {"checkpoint_s", &RunTimes::checkpoint_s}, {"checkpoint_stall_s", &RunTimes::checkpoint_stall_s},
    {"snapshot_s", &RunTimes::snapshot_s},     {"model_s", &RunTimes::model_s}};

struct TrainSummary {
  int64_t num_steps = 0;
  double epoch = 0;
  double train_loss = 0;  // mean over the steps
  double runtime_s = 0;
  int64_t num_tokens = 0;
  // During steps only, without evaluation and saving.
  double tokens_per_second = 0;
  double tflops = 0;
  std::optional<double> mfu;  // relative to the best peak of the run
  std::optional<BestPeak> peak;
  int64_t peak_resident_bytes = 0;
  // Per step, if there are several nodes; excludes the first step, which gathers less.
  std::optional<NetworkUse> network;
  std::optional<DiskSummary> disk;  // if offload_dir is used
  RunTimes times;
  struct Evaluation {
    int64_t step;
    double loss;
    std::string set = {};  // of several sets by name: the one whose loss is watched, or the first
  };
  std::optional<Evaluation> best_evaluation;  // of the whole run, before a resume as well
  std::string hint;                           // what to try next for speed, a sentence; "" = nothing is known
  int stop_signal = 0;                        // the signal that ended the run early, 0 = it ran to completion
  std::filesystem::path folder;  // where the model is: output_dir, or the checkpoint written on the signal
};

class TrainObserver {
 public:
  virtual ~TrainObserver() = default;

  // Whether to report the run to it on every rank; other observers get reports on rank 0 alone.
  virtual bool is_for_every_rank() const { return false; }

  // Preparation: "reading dataset"; fraction from 0 to 1.
  virtual void on_progress(const std::string& /*what*/, double /*fraction*/) {}
  // Reading the model's files.
  virtual void on_loading(double /*fraction*/, double /*bytes_per_second*/) {}
  // Before the plan is checked against the free memory and before anything is allocated.
  virtual void on_plan(const RunPlan& /*plan*/) {}
  // The run resumes from this checkpoint, after `step` steps. `differences` lists settings that differ from
  // the checkpoint's and change the numbers, "" = none.
  virtual void on_resume(const std::filesystem::path& /*folder*/, int64_t /*step*/,
                         const std::string& /*differences*/) {}
  // The run resumes from state that the ranks of an earlier start left in the memory of these nodes: "node
  // 0", "nodes 0-2".
  virtual void on_resume_from_memory(const std::string& /*nodes*/, int64_t /*step*/,
                                     const std::string& /*differences*/) {}
  // From now on output_dir is this run's.
  virtual void on_output_folder() {}
  // Files from an earlier run were moved to this folder.
  virtual void on_previous_run(const std::filesystem::path& /*folder*/) {}
  // After the first step; for rank 0's node. Not called if the system does not provide the figures.
  virtual void on_memory(const MemoryPlan& /*plan*/, const MeasuredMemory& /*measured*/) {}
  virtual void on_step(const StepMetrics& /*metrics*/) {}
  // An entry of log_history; log_line_text() is the line Hugging Face prints.
  virtual void on_log(const LogEntry& /*entry*/) {}
  virtual void on_evaluation_progress(double /*fraction*/) {}
  // The result of one evaluation set; "" = the only one, without a name.
  virtual void on_evaluation(const std::string& /*set*/, const EvalResult& /*result*/) {}
  virtual void on_checkpoint(const CheckpointUse& /*checkpoint*/) {}
  // A checkpoint could not be written; training continues.
  virtual void on_checkpoint_failed(const std::filesystem::path& /*folder*/, const std::string& /*message*/) {
  }
  // A warning or an error that was logged since the last call; after the step in which it was.
  virtual void on_warning(const std::string& /*message*/) {}
  // The run ends with this error. Not called before output_dir is this run's, nor if the process is killed.
  virtual void on_error(const std::string& /*message*/) {}
  virtual void on_finish(const TrainSummary& /*summary*/) {}
};

// Passes every call on to all its observers, in the order in which they were added.
class ObserverList : public TrainObserver {
 public:
  // `observer` must outlive this.
  void add(TrainObserver& observer) { observers_.push_back(&observer); }

  void on_progress(const std::string& what, double fraction) override {
    for (TrainObserver* observer : observers_) observer->on_progress(what, fraction);
  }
  void on_loading(double fraction, double bytes_per_second) override {
    for (TrainObserver* observer : observers_) observer->on_loading(fraction, bytes_per_second);
  }
  void on_plan(const RunPlan& plan) override {
    for (TrainObserver* observer : observers_) observer->on_plan(plan);
  }
  void on_resume(const std::filesystem::path& folder, int64_t step, const std::string& differences) override {
    for (TrainObserver* observer : observers_) observer->on_resume(folder, step, differences);
  }
  void on_resume_from_memory(const std::string& nodes, int64_t step,
                             const std::string& differences) override {
    for (TrainObserver* observer : observers_) observer->on_resume_from_memory(nodes, step, differences);
  }
  void on_output_folder() override {
    for (TrainObserver* observer : observers_) observer->on_output_folder();
  }
  void on_previous_run(const std::filesystem::path& folder) override {
    for (TrainObserver* observer : observers_) observer->on_previous_run(folder);
  }
  void on_memory(const MemoryPlan& plan, const MeasuredMemory& measured) override {
    for (TrainObserver* observer : observers_) observer->on_memory(plan, measured);
  }
  void on_step(const StepMetrics& metrics) override {
    for (TrainObserver* observer : observers_) observer->on_step(metrics);
  }
  void on_log(const LogEntry& entry) override {
    for (TrainObserver* observer : observers_) observer->on_log(entry);
  }
  void on_evaluation_progress(double fraction) override {
    for (TrainObserver* observer : observers_) observer->on_evaluation_progress(fraction);
  }
  void on_evaluation(const std::string& set, const EvalResult& result) override {
    for (TrainObserver* observer : observers_) observer->on_evaluation(set, result);
  }
  void on_checkpoint(const CheckpointUse& checkpoint) override {
    for (TrainObserver* observer : observers_) observer->on_checkpoint(checkpoint);
  }
  void on_checkpoint_failed(const std::filesystem::path& folder, const std::string& message) override {
    for (TrainObserver* observer : observers_) observer->on_checkpoint_failed(folder, message);
  }
  void on_warning(const std::string& message) override {
    for (TrainObserver* observer : observers_) observer->on_warning(message);
  }
  void on_error(const std::string& message) override {
    for (TrainObserver* observer : observers_) observer->on_error(message);
  }
  void on_finish(const TrainSummary& summary) override {
    for (TrainObserver* observer : observers_) observer->on_finish(summary);
  }

 private:
  std::vector<TrainObserver*> observers_;
};

}  // namespace tessera
