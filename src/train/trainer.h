// Training: a model folder and a dataset in, a trained model folder out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "arguments/arguments.h"
#include "base/log.h"
#include "base/stopwatch.h"
#include "comm/communicator.h"
#include "formats/safetensors/safetensors.h"
#include "model/trainable_model.h"
#include "ops/clocked_ops.h"
#include "ops/cpu_ops.h"
#include "optim/schedule.h"
#include "plan/forms/ladder.h"
#include "plan/run_planner.h"
#include "platform/thread_pool.h"
#include "train/evaluation/best_model.h"
#include "train/evaluation/choices.h"
#include "train/guards/step_guard.h"
#include "train/measure/disk_meter.h"
#include "train/measure/job_peak.h"
#include "train/measure/run_clock.h"
#include "train/measure/run_totals.h"
#include "train/observer.h"
#include "train/output/run_files.h"
#include "train/output/run_log.h"
#include "train/parameters/frozen_weights.h"
#include "train/progress.h"
#include "train/recovery/peer_snapshots.h"
#include "train/recovery/run_resume.h"
#include "train/step_actions.h"
#include "train/step_exchange.h"
#include "train/step_rows.h"
#include "train/step_runner.h"
#include "train/stop_agreement.h"
#include "train/training_data.h"

namespace tessera {

// With several ranks each has a Trainer, and all calls are collective; rank 0 alone writes reports and
// tells its observer, unless that is for every rank; all write checkpoints.
class Trainer {
 public:
  // Opens model and dataset, plans the run, checks its memory, allocates, and loads the weights or the state
  // that the run resumes from. `args` must be resolved (resolve_training_arguments); pool, observer and comm
  // must outlive this. Writes nothing to output_dir yet, except, with several nodes, a file that it removes
  // again.
  Trainer(const TrainingArguments& args, ThreadPool& pool, TrainObserver& observer,
          Communicator& comm = single_process(), const OpsFactory& make_ops = make_cpu_ops);

  const RunPlan& plan() const { return plan_; }

  // Trains to the last step and writes everything to output_dir; a run that is finished already is left as it
  // is. `stop_signal` is asked between layers; a nonzero number ends the run with a checkpoint of the last
  // finished step, which is the current one if grace_period_s leaves time for it. May be called once.
  // Error(kNumerics) if loss or gradient norm is not finite: the weights are then those of the step before.
  TrainSummary run(const std::function<int()>& stop_signal = {});

  // Writes the model as it is now.
  void export_model(const std::filesystem::path& folder) { files_->export_model(folder); }

 private:
  // Preparation (trainer_setup.cc).
  void open_model(const OpsFactory& make_ops);
  void open_choices();
  void plan_run();
  // Free memory is that of this node, or what fit_memory says.
  MachineFacts machine_facts() const;
  // What plan/forms chooses among, on this node (trainer_fit.cc); the rate of its disk is not measured.
  LadderRequest ladder_request(const BatchPlanOptions& batch, const DataFacts& data);
  // With fit: collective, rank 0 chooses for the node with the least memory and the one with the least disk.
  void choose_form(const BatchPlanOptions& batch, const DataFacts& data);
  void plan_memory_use(const RunPlanner& planner, const BatchPlanOptions& batch, const DataFacts& data);
  void prepare_disk();
  void allocate_and_load();
  std::function<void(const LoadProgress&)> loading_progress();
  void load_parameters();
  void initialize_adapters(const ElementRange& range);
  void restore_progress();

  const World& world() const { return comm_.world(); }
  bool is_root() const { return world().rank == 0; }
  bool begins_with_evaluation() const;
  bool is_finished_already();
  // nullopt if the step was abandoned: weights and optimizer are then as before it.
  std::optional<StepMetrics> train_step(int64_t step);
  // False: the update is skipped. Error(kNumerics) if a guard ends the run.
  bool passes_guards(const RowLists& passes, StepMetrics* metrics);
  // Whether groups are updated in the step's only backward pass, before its gradient norm is known.
  bool updates_in_first_run() const;
  // The update in the next backward pass; norm: of the gradients, which clipping goes by.
  void begin_backward_update(int64_t step, double norm);
  OptimizerStep optimizer_step(int64_t step, double norm) const;
  ChangeHook change_hook();
  void update(const RowLists& passes, StepMetrics* metrics);
  void update_in_second_run(const RowLists& passes, StepMetrics* metrics);
  void report_warnings();
  void account(StepMetrics metrics);
  // True if the evaluation is the best so far; false if a signal cut it short.
  bool run_evaluation();
  // After the last step, or once early stopping has ended the run.
  bool is_done() const { return progress_.step >= plan_.max_steps || best_rule_.stops(progress_.best); }
  void save();
  void take_snapshot();
  // Where the checkpoint of a best evaluation is.
  std::filesystem::path best_folder(int64_t step) const;
  // Collective, with no checkpoint under way: whether the best evaluation has a checkpoint.
  void find_best_checkpoint();
  // The step whose checkpoint save_total_limit spares, once the one of this step is complete; 0 = none.
  int64_t spared_step() const {
    return progress_.best.step == progress_.step ? progress_.step : progress_.best.checkpoint_step;
  }
  // Collective: gives the model the weights of the best checkpoint.
  void load_best_model();
  TrainerState trainer_state(const Progress& progress) const;
  TrainingRecord record_now() const;
  RunRecord run_record() const;
  // What it takes and was (trainer_summary.cc).
  RunEstimates estimates() const;
  TrainSummary summarize() const;
  // Where the time went, and the hint that follows from it.
  void add_times(TrainSummary* summary) const;
  TrainSummary finish_run();

  Stopwatch since_start_;
  TrainingArguments args_;
  ThreadPool& pool_;
  Communicator& comm_;
  ObserverList observer_;  // on ranks other than 0 only one for every rank
  TrainingRecord record_;  // of this run, without its progress

  std::unique_ptr<Ops> ops_;
  std::optional<ClockedOps> clocked_ops_;  // the model's
  std::unique_ptr<TrainableModel> model_;
  std::optional<SafetensorsModel> model_file_;  // until the weights are loaded
  std::optional<FrozenWeights> frozen_;         // with adapters
  std::unique_ptr<ParameterState> parameters_;
  std::optional<TrainingData> data_;
  std::optional<ChoiceSet> choices_;
  std::optional<StepRows> rows_;
  std::unique_ptr<Schedule> schedule_;
  std::optional<ActionSchedule> actions_;
  RunPlan plan_;

  NetworkMeter network_meter_;  // runs during steps
  std::optional<DiskMeter> disk_meter_;
  std::optional<DiskRate> disk_rate_;  // on rank 0, of offload_dir
  std::optional<JobPeak> peak_;
  std::optional<StopAgreement> stop_;
  std::optional<StepRunner> runner_;
  StepExchange exchange_;
  std::vector<std::unique_ptr<StepGuard>> guards_;
  std::optional<RunFiles> files_;
  std::optional<PeerSnapshots> snapshots_;
  std::optional<RunResume> resume_;

  BestModelRule best_rule_;
  Progress progress_;
  RunLog log_;
  RunTotals totals_;
  std::optional<RunClock> clock_;   // on rank 0
  int64_t loading_peak_bytes_ = 0;  // resident, of this rank
  bool output_is_shared_ = true;    // by all nodes
  bool has_run_ = false;
  std::optional<LogTap> warnings_;  // on rank 0
};

}  // namespace tessera
