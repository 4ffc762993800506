// Training: a model folder and a dataset in, a trained model folder out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint_reader.h"
#include "checkpoint/model_folder.h"
#include "comm/communicator.h"
#include "data/batch_plan.h"
#include "data/dataset.h"
#include "data/deal_rows.h"
#include "formats/safetensors.h"
#include "model/model.h"
#include "ops/cpu_ops.h"
#include "ops/ops.h"
#include "optim/schedule.h"
#include "platform/thread_pool.h"
#include "train/arguments.h"
#include "train/checkpoint_saver.h"
#include "train/loss_spike.h"
#include "train/metrics_file.h"
#include "train/network_meter.h"
#include "train/observer.h"
#include "train/output_folder.h"
#include "train/parameter_state.h"
#include "train/peer_snapshots.h"
#include "train/replay_check.h"
#include "train/slow_ranks.h"
#include "train/step_actions.h"
#include "train/stopwatch.h"
#include "train/trainer_state.h"
#include "train/training_peak.h"
#include "train/training_record.h"

namespace tessera {

// The factor that brings gradients of norm `norm` to at most max_norm, as torch.nn.utils.clip_grad_norm_:
// min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0.
double clip_factor(double norm, double max_norm);

// With several ranks every one of them has a Trainer, and all calls are collective; rank 0 alone reports to
// its observer and writes reports; checkpoints are written by all. A step is the same whatever the number of
// ranks: its rows depend on the data, the seed and the global batch alone.
// Makes the operations of a model.
using OpsFactory = std::function<std::unique_ptr<Ops>(ThreadPool& pool)>;

class Trainer {
 public:
  // Opens model and dataset, plans the run, checks its memory, allocates and loads, from a checkpoint where
  // the run is resumed. `args` must be resolved (resolve_training_arguments); pool, observer and comm must
  // outlive this. Nothing is written to output_dir yet, but with several nodes a file that is removed again.
  Trainer(const TrainingArguments& args, ThreadPool& pool, TrainObserver& observer,
          Communicator& comm = single_process(), const OpsFactory& make_ops = make_cpu_ops);
  ~Trainer();

  const RunPlan& plan() const { return run_plan_; }

  // Trains from the first step, or the one behind the checkpoint, to the last and writes everything to
  // output_dir; what has reached its last step already is left as it is. `stop_signal` is asked between
  // layers; a number other than 0 ends the run with a checkpoint of the last finished step, which is the
  // present one where grace_period_s leaves time for it. May be called once. Error(kNumerics) when loss or
  // gradient norm is not finite: the weights are then those of the step before.
  TrainSummary run(const std::function<int()>& stop_signal = {});

  // Writes the model as it is now.
  void export_model(const std::filesystem::path& folder);

 private:
  // Preparation, in this order.
  void open_model(const OpsFactory& make_ops);
  void measure_peak();
  void open_datasets();
  void plan_steps();
  void plan_passes();
  int64_t largest_pass();
  MemoryRequest memory_request();
  bool fits_everywhere(const MemoryRequest& request);
  void plan_disk_use();
  void plan_memory_use();
  void allocate_and_load();
  void check_output_is_shared();

  // Resuming (trainer_resume.cc).
  struct ResumePoint {
    std::optional<CheckpointReader> reader;  // or
    std::optional<HeldState> held;           // in memory
    TrainingRecord record;
    std::vector<LogEntry> log_history;

    std::string origin() const;  // for messages
  };
  static ResumePoint open_resume_point(const std::filesystem::path& folder);
  // Collective: the newest usable checkpoint of output_dir below step `before`; where one was asked for by
  // name, of this launch: what was there before does not count.
  std::optional<std::filesystem::path> newest_checkpoint(int64_t before);
  // Rather than start afresh, and lose what a disk or a person may bring back, auto ends with an error.
  void refuse_unusable_checkpoints();
  bool is_of_this_launch(const CheckpointReader& reader) const;
  void choose_checkpoint();
  // In place of one that is damaged.
  std::optional<std::filesystem::path> older_checkpoint();
  // Refuses a checkpoint of another run; returns the order of the rows.
  BatchPlanOptions go_on_with_batches(const BatchPlanOptions& options);
  void load_checkpoint();
  void restore_progress();
  bool resumes_in_place() const;
  bool begins_with_evaluation() const;
  bool is_finished_already();

  // Copies of the ranks' state in memory (trainer_snapshots.cc).
  void open_snapshots();
  // Collective: goes on from them unless the newest checkpoint of output_dir is of a later step.
  bool resume_from_memory(const std::optional<std::filesystem::path>& newest);
  void take_snapshot();

  Dataset open_dataset(const std::vector<std::string>& files, const Tokenizer* tokenizer,
                       const std::string& what);
  std::filesystem::path tokenizer_folder() const;
  int64_t max_length() const;
  ActivationLimits limits_for(int64_t batch_size, int64_t max_row_length, bool gradient_checkpointing) const;

  const World& world() const { return comm_->world(); }
  bool is_root() const { return world().rank == 0; }
  // Row numbers of the passes of all ranks, pass p of rank r at p * world_size + r; until the next call.
  const RowLists& passes_of_step(int64_t step);
  // Nothing when the step was given up: weights and optimizer are then as before it.
  std::optional<StepMetrics> train_step(int64_t step);
  struct StepSums;
  // False: given up.
  bool run_passes(const RowLists& passes, float grad_scale, StepSums* sums);
  void run_pass(const RowLists& passes, int64_t pass, bool is_last, float grad_scale, StepSums* sums);
  // The first pass for the first time, where it is to be computed twice (replay_check.h).
  void rehearse(const RowLists& passes, float grad_scale);
  // kNumerics when the second time was different on any rank: where that is in the step's sums, which are the
  // last.
  void check_replay(int64_t step, int64_t sum_index);

  // Where this rank is, for the report on a standstill.
  void mark_work(const char* what);
  void mark_layer(int64_t group, WeightUse use);

  // Signals (trainer_signal.cc). Between layers: false when one came for which this rank gives up the step or
  // the evaluation.
  bool go_on_computing();
  double write_estimate_s() const;
  bool must_give_up() const;
  // Collective, in front of pass `pass`, at times: whether any rank has given up the step.
  bool give_up_together(int64_t pass);
  // For signals that other ranks get.
  void watch_for_signal();
  // The first that this process got, or, as its store tells, a rank anywhere in the job; 0 = none.
  int received_signal();
  // Collective: sets agreed_signal_ where `wish` is true on any rank.
  bool stop_together(bool wish);
  void update(const StepMetrics& metrics);
  void measure_peak_again();
  // Nothing when the peak was not measured.
  std::optional<BestPeak> best_peak() const;
  std::optional<double> share_of_peak(double tflops) const;
  // `sums` over all ranks; nothing on one node.
  std::optional<NetworkUse> network_use(const NetworkCounters& sums) const;
  int64_t count_targets(const RowLists& passes) const;
  // Whether the update is to be left out. kNumerics when the run is to end.
  bool is_to_skip(const StepMetrics& metrics, bool own_loss_is_finite, const RowLists& passes);
  // kNumerics, or a warning when the step may be skipped: what is not finite, and where it comes from.
  void report_not_finite(const StepMetrics& metrics, bool own_loss_is_finite, const RowLists& passes);
  // From the step's sums, which are the last, and where in them work and time of a rank are; warns of ranks
  // that have become slow.
  std::optional<SlowestRank> find_slowest_rank(int64_t step, int64_t work_index, int64_t compute_index);

  // Reports and files.
  void measure_memory();
  void open_output();
  void account(StepMetrics metrics);
  void add_log(LogEntry entry);
  void log_training();
  void run_evaluation();
  // What rank 0 does in the end to write the model, while the others write what they own, or hand it over.
  void write_model();
  void write_as_first_rank(const std::function<void(const std::filesystem::path& folder)>& export_to);
  void export_parts(const std::filesystem::path& folder);
  void hand_over_to_first_rank();
  ExportOptions export_options() const;
  CheckpointPlan checkpoint_plan() const;
  void update_record();  // to the present step
  RunRecord run_record();
  // Begins one of the present step, when the one before is over.
  void save_checkpoint();
  // Waits for the one under way.
  void finish_checkpoint();
  void report_checkpoint();
  void save_before_stop();
  double mean_loss() const { return total_loss_ / static_cast<double>(std::max<int64_t>(num_updates_, 1)); }
  LogEntry final_log(double runtime_s) const;
  std::optional<NetworkUse> mean_network_use() const;
  TrainSummary summarize();
  TrainSummary finish_run();
  // Several ranks agree on it between passes and at the end of every step: signals reach them at different
  // times.
  bool stop_wanted() {
    if (world().is_single() && agreed_signal_ == 0) agreed_signal_ = received_signal();
    return agreed_signal_ != 0;
  }

  TrainingArguments args_;
  TrainingRecord record_;  // of this run, without its progress
  ThreadPool* pool_;
  Communicator* comm_;
  TrainObserver no_observer_;  // of the other ranks
  TrainObserver* observer_;
  std::function<int()> stop_signal_;

  std::unique_ptr<Ops> ops_;
  std::unique_ptr<Model> model_;
  std::optional<SafetensorsModel> model_file_;  // until the weights are loaded
  std::optional<Dataset> dataset_;
  std::optional<Dataset> eval_dataset_;
  std::optional<BatchPlan> batch_plan_;
  std::optional<ActionSchedule> actions_;
  std::unique_ptr<Schedule> schedule_;
  RunPlan run_plan_;
  ActivationLimits limits_;
  ZeroSettings zero_settings_;

  std::optional<ResumePoint> resume_;
  int64_t first_step_ = 0;         // steps done before this process
  int64_t first_tokens_seen_ = 0;  // in them
  int64_t snapshot_bytes_ = 0;

  std::unique_ptr<ParameterState> parameters_;
  int64_t step_rows_ = 0;         // of all ranks
  int64_t micro_batch_rows_ = 0;  // at most
  std::optional<RowDealer> dealer_;
  RowLists micro_batches_;
  RowLists passes_;
  PackedBatch batch_;

  std::optional<TrainingPeak> peak_;  // of this rank, unless a rank has none
  double peak_tflops_ = 0;            // of all ranks, each at its best
  bool peak_is_due_ = false;          // the ranks measure again before the next step

  NetworkMeter network_meter_;  // runs during steps

  LossSpikeDetector loss_spikes_;
  std::optional<SlowRankDetector> slow_ranks_;  // of several ranks
  int64_t num_updates_ = 0;                     // of the optimizer: steps that were not skipped
  int64_t num_skipped_in_a_row_ = 0;
  std::vector<double> step_work_, step_compute_s_;  // of a step, by rank

  std::optional<OutputFolder> output_;
  std::optional<MetricsFile> metrics_file_;
  std::optional<CheckpointSaver> saver_;
  std::optional<PeerSnapshots> snapshots_;
  LogHistoryText history_text_;           // for them
  std::optional<double> snapshot_s_;      // of the last one, not in metrics.jsonl yet
  std::optional<CheckpointUse> written_;  // not in metrics.jsonl yet
  std::string checkpoint_error_;          // of the last checkpoint that failed
  bool saves_before_stop_ = false;        // a checkpoint that fails now ends the run, with its error
  TrainerState state_;
  StepMetrics last_step_;
  int agreed_signal_ = 0;
  bool output_is_shared_ = true;  // by all nodes
  bool in_passes_ = false;
  bool in_evaluation_ = false;
  int received_signal_ = 0;
  bool given_up_ = false;  // by this rank: what it does
  std::optional<Stopwatch> since_signal_;
  Stopwatch since_step_began_;
  std::optional<ReplayCheck> replay_;  // in the passes of a step that is checked
  std::string replay_difference_;      // of this rank; "" = none
  double rehearsal_s_ = 0;
  // Of the step before, mean of the ranks, the same on all.
  double pass_s_ = 0;
  int64_t last_saved_step_ = -1;    // of the last complete checkpoint; known to rank 0
  int64_t loading_peak_bytes_ = 0;  // of this rank, resident
  bool handed_over_ = false;        // the masters, in hand_over_to_first_rank()
  int64_t losses_since_log_ = 0;    // steps that loss_since_log_ is of
  double loss_since_log_ = 0;
  double total_loss_ = 0;  // of num_updates_
  double total_step_time_s_ = 0;
  double total_model_flops_ = 0;
  NetworkUse total_network_;  // from the second step on; not its share
  double total_hidden_s_ = 0;
  Stopwatch run_time_;
};

}  // namespace tessera
