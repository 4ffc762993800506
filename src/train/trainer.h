// Training: a model folder and a dataset in, a trained model folder out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "base/log.h"
#include "comm/communicator.h"
#include "devices/make_ops.h"
#include "platform/thread_pool.h"
#include "report/observer.h"
#include "report/progress.h"
#include "report/run_control.h"
#include "report/run_log.h"
#include "report/run_totals.h"
#include "settings/run_settings.h"
#include "train/best_checkpoint.h"
#include "train/evaluation/best_model.h"
#include "train/measure/disk_meter.h"
#include "train/measure/run_clock.h"
#include "train/output/run_files.h"
#include "train/setup/run_setup.h"
#include "train/step/step_gather.h"
#include "train/step/step_guard.h"
#include "train/step/step_runner.h"
#include "train/step/step_update.h"
#include "train/step/stop_agreement.h"

namespace tessera {

// If there are several ranks, each has a Trainer, and all calls are collective; rank 0 alone writes reports
// and calls its observer, unless that is for every rank; all write checkpoints.
class Trainer {
 public:
  // Opens model and dataset, plans the run, checks its memory, allocates, and loads the weights or the state
  // that the run resumes from. `spec` must be resolved (read_run_spec); pool, observer and comm
  // must outlive this. The operations are those of spec.device, unless make_ops is given. Writes nothing to
  // output_dir yet, except, with several nodes, a file that it removes again.
  Trainer(const RunSpec& spec, ThreadPool& pool, TrainObserver& observer,
          Communicator& comm = single_process(), const OpsFactory& make_ops = {});

  const RunPlan& plan() const { return setup_.plan; }

  // Trains to the last step and writes everything to output_dir; a run that is already finished is left as it
  // is. `stop_signal` is polled between layers; a nonzero number ends the run with a checkpoint of the last
  // finished step, which is the current one if grace_period_s leaves time for it. `control`, on rank 0, is
  // asked after every step. May be called once.
  // Error(kNumerics) if loss or gradient norm is not finite: the weights are then those of the step before.
  TrainSummary run(const std::function<int()>& stop_signal = {}, RunControl* control = nullptr);

  // Writes the model as it is now.
  void export_model(const std::filesystem::path& folder) { files_.export_model(folder); }

 private:
  const World& world() const { return setup_.world(); }
  bool is_root() const { return setup_.is_root(); }
  bool trains_apart() const { return setup_.plan.zero.outer.has_value(); }
  void restore_progress();
  TrainSummary train(const std::function<int()>& stop_signal, RunControl* control);
  // Does what is due after a step, and what the control asks for.
  void act_after_step(RunControl* control);
  // Collective: what `control` of rank 0 asks for; nothing without one.
  RunRequests requests(RunControl* control);
  bool begins_with_evaluation() const;
  bool is_finished_already();
  // Waits for rows that another process feeds. Collective; false if a signal came before they did.
  bool wait_for_rows(int64_t step);
  // nullopt if the step was abandoned: weights and optimizer are as before it. `step_time` began with the
  // wait for its rows.
  std::optional<StepMetrics> train_step(int64_t step, const Stopwatch& step_time);
  int64_t micro_batches_of(const RowLists& passes) const;  // of a rank
  // The divisor of this rank's token losses.
  LossDivisor loss_divisor(int64_t step, const RowLists& passes, int64_t num_targets) const;
  // False: the update is skipped. Error(kNumerics) if a guard ends the run.
  bool passes_guards(const RowLists& passes, StepMetrics* metrics);
  void report_warnings();
  void account(StepMetrics metrics);
  // True if the evaluation is the best so far; false if a signal cut it short.
  bool run_evaluation();
  // Evaluates all sets and the choices, and appends what to log of each; false if a signal cut that short.
  bool evaluate_sets(std::vector<EvalResult>* results, std::vector<LogEntry>* entries);
  // After the last step, or once early stopping or the control has ended the run.
  bool is_done() const {
    return progress_.step >= setup_.plan.max_steps || best_rule_.stops(progress_.best) || stop_requested_;
  }
  // For what is evaluated or written: nodes that train on their own take the same weights.
  void synchronize();
  void save();
  void take_snapshot();
  TrainerState trainer_state(const Progress& progress) const;
  TrainingRecord record_now(int64_t best_checkpoint_step) const;
  RunRecord run_record() const;
  // Estimates and summary of the run (trainer_summary.cc).
  RunEstimates estimates() const;
  TrainSummary summarize() const;
  // Where the time went, and the hint that follows from it.
  void add_times(TrainSummary* summary) const;
  TrainSummary finish_run();

  std::unique_ptr<LogTap> warnings_;  // on rank 0
  RunSetup setup_;
  NetworkMeter network_meter_;  // runs during steps
  DiskMeter disk_meter_;
  StopAgreement stop_;
  RunFiles files_;
  StepRunner runner_;
  StepUpdate update_;
  StepGather gather_;
  std::vector<std::unique_ptr<StepGuard>> guards_;

  BestModelRule best_rule_;
  Progress progress_;
  RunLog log_;
  BestCheckpoint best_checkpoint_;
  RunTotals totals_;
  std::optional<RunClock> clock_;  // on rank 0
  bool has_run_ = false;
  bool has_control_ = false;           // on any rank
  bool stop_requested_ = false;        // by the control
  bool has_named_empty_step_ = false;  // without targets
};

}  // namespace tessera
