// The loop of a run and its single step. Preparation is in trainer_setup.cc, the update of a step in
// trainer_update.cc, the summary in trainer_summary.cc.
#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/checkpoint_files.h"
#include "platform/memory_info.h"
#include "train/output/log_entries.h"
#include "train/work_mark.h"

namespace tessera {

namespace {

// Measures the memory of rank 0's node once a step has touched everything that steps need. Collective;
// nullopt if the system does not provide the figures.
std::optional<MeasuredMemory> measure_memory(Communicator& comm, int64_t loading_peak_bytes) {
  struct RankMemory {
    bool is_known;
    int64_t private_bytes, shared_bytes, loading_peak_bytes;
  };
  const std::optional<ProportionalMemory> mine = proportional_memory();
  RankMemory own = {mine.has_value(), 0, 0, 0};
  if (mine && comm.world().node_rank == 0) {
    own = {true, mine->private_bytes(), mine->shared_bytes, loading_peak_bytes};
  }
  MeasuredMemory measured;
  bool is_known = true;
  for (const RankMemory& memory : comm.all_gather(own, {"measured memory"})) {
    is_known = is_known && memory.is_known;
    measured.private_bytes += memory.private_bytes;
    measured.shared_bytes += memory.shared_bytes;
    measured.loading_peak_bytes += memory.loading_peak_bytes;
  }
  return is_known ? std::optional(measured) : std::nullopt;
}

}  // namespace

TrainSummary Trainer::run(const std::function<int()>& stop_signal) {
  TESSERA_CHECK(!std::exchange(has_run_, true), "a trainer runs once");
  const bool is_finished = is_finished_already();
  if (!is_finished) {
    files_->open(*resume_ && resume_->is_in_place() ? std::optional(progress_.step) : std::nullopt, plan_);
  }
  if (*resume_) resume_->report(record_, observer_);
  if (is_finished) {
    if (is_root())
      log_info("nothing is left to do: {} has the model of step {}", args_.output_dir, progress_.step);
    return summarize();
  }
  totals_ = RunTotals();
  totals_.times().startup_s = since_start_.seconds();
  if (is_root()) clock_.emplace(*actions_, plan_.max_steps, args_.replay_check_steps);
  comm_.rail().wait_for_all();  // what loading has begun
  network_meter_.start();
  stop_->listen(stop_signal);
  if (begins_with_evaluation()) run_evaluation();
  while (!is_done() && !stop_->is_wanted()) {
    peak_->measure_if_due(progress_.step + 1);
    const std::optional<StepMetrics> metrics = train_step(progress_.step);
    if (!metrics) break;
    files_->report_checkpoint();
    account(*metrics);
    if (totals_.num_steps() == 1) {
      const NetworkMeterPause pause(network_meter_);
      const auto measured = measure_memory(comm_, loading_peak_bytes_);
      if (measured) observer_.on_memory(plan_.memory, *measured);
    }
    const StepActions due = actions_->after(progress_.step);
    if (due.log) log_.add_training(totals_.last_step(), &progress_);
    const bool is_best = due.evaluate && run_evaluation();
    if (due.save || (is_best && args_.save_strategy == "best")) save();
    if (due.snapshot) take_snapshot();
  }
  return finish_run();
}

// A signal may have cut short the evaluation of the step that the run resumes from.
bool Trainer::begins_with_evaluation() const {
  if (!*resume_) return args_.eval_on_start;
  return actions_->after(progress_.step).evaluate && !has_evaluation(log_.history(), progress_.step);
}

// The finished model is there, too, and nothing else is due.
bool Trainer::is_finished_already() {
  if (!*resume_ || !is_done() || begins_with_evaluation()) return false;
  const bool is_there =
      is_root() && resume_->is_in_place() && finished_step(args_.output_dir) == progress_.step;
  return comm_.broadcast(is_there, 0, {"resume"});
}

std::optional<StepMetrics> Trainer::train_step(int64_t step) {
  const Stopwatch step_time;
  stop_->begin_step();
  disk_meter_->take();  // what evaluations and checkpoints have moved
  mark_work(comm_, "choosing rows", step + 1);
  const RowLists& passes = rows_->passes_of_step(step);
  const int64_t num_targets = rows_->count_targets(passes);
  const double choosing_s = step_time.seconds();
  const bool updates_at_once = updates_in_first_run();
  if (updates_at_once) begin_backward_update(step, progress_.last_grad_norm.value_or(0));
  std::optional<StepPart> part = runner_->run(step, passes, num_targets);
  if (!part) return std::nullopt;
  const double waited_before_s = comm_.waited_s();
  {
    const NetworkMeterPause pause(network_meter_);
    part->network = network_meter_.take();
    part->disk = disk_meter_->take();
    exchange_.gather(*part, stop_->share(), files_->saver().share(), peak_->share(), comm_);
  }
  const bool is_complete = stop_->take_shares(exchange_.stops);
  peak_->take_shares(exchange_.peaks);
  files_->saver().take_shares(exchange_.checkpoints);
  if (!is_complete) return std::nullopt;

  StepMetrics metrics = exchange_.sums(num_targets);
  metrics.step = step + 1;
  metrics.epoch = rows_->batches().epoch_after(step + 1);
  metrics.learning_rate = schedule_->learning_rate(step);
  if (runner_->rehearsal_s() > 0) metrics.replay_check_s = runner_->rehearsal_s();
  metrics.skipped = !passes_guards(passes, &metrics);
  metrics.times.rows_s += choosing_s;
  if (!metrics.skipped) {
    if (updates_at_once) {
      metrics.times.optimizer_s = parameters_->backward_update()->seconds();
    } else {
      update(passes, &metrics);
    }
    ++progress_.num_updates;
    progress_.last_grad_norm = metrics.grad_norm;
  }
  if (metrics.disk) {
    metrics.disk->add(disk_meter_->take());
    metrics.times.disk_s = metrics.disk->wait_s();
    metrics.times.optimizer_s = std::max(0.0, metrics.times.optimizer_s - metrics.disk->state_wait_s);
  }
  metrics.times.wait_s += comm_.waited_s() - waited_before_s;
  metrics.step_time_s = step_time.seconds();
  metrics.times.other_s = std::max(0.0, metrics.step_time_s - metrics.times.listed_s());
  metrics.tokens_per_second = static_cast<double>(metrics.num_tokens) / metrics.step_time_s;
  double flops = 0, compute_s = 0;
  for (const StepPart& of_rank : exchange_.parts) {
    flops += of_rank.flops;
    compute_s += of_rank.compute_s;
  }
  metrics.tflops = flops * 1e-12 / metrics.step_time_s;
  metrics.mfu = peak_->share_of_peak(metrics.tflops);
  metrics.peak = peak_->best();
  stop_->end_step(metrics.step_time_s, compute_s / static_cast<double>(passes.size()));
  return metrics;
}

bool Trainer::passes_guards(const RowLists& passes, StepMetrics* metrics) {
  const CheckedStep step = {metrics, exchange_.parts, &passes, &runner_->replay_difference()};
  for (const auto& guard : guards_) {
    const GuardVerdict verdict = guard->check(step);
    if (verdict.action == GuardVerdict::Action::kSkip) return false;
    if (verdict.action == GuardVerdict::Action::kUpdate) continue;
    files_->finish_checkpoint(metrics->step);
    fail(ExitCode::kNumerics, "{}", verdict.reason);
  }
  return true;
}

void Trainer::report_warnings() {
  if (!warnings_) return;
  for (const std::string& message : warnings_->take()) observer_.on_warning(message);
}

void Trainer::account(StepMetrics metrics) {
  metrics.checkpoint = files_->take_written();
  if (snapshots_) metrics.peer_snapshot_s = snapshots_->take_stall_s();
  progress_.step = metrics.step;
  progress_.epoch = metrics.epoch;
  progress_.num_input_tokens_seen += metrics.num_tokens;
  progress_.total_flos += floating_point_ops(*model_, metrics.num_tokens);
  if (!metrics.skipped) {
    progress_.loss_since_log += metrics.loss;
    ++progress_.losses_since_log;
    progress_.total_loss += metrics.loss;
  }
  totals_.add(metrics);
  if (clock_) {
    clock_->add_step(metrics);
    metrics.eta_s = clock_->seconds_left(metrics.step, estimates());
  }
  observer_.on_step(metrics);
  report_warnings();
}

bool Trainer::run_evaluation() {
  const AddedTime added(&totals_.times().evaluation_s);
  const Stopwatch time;
  const NetworkMeterPause pause(network_meter_);
  const auto progress = [this](double fraction) {
    observer_.on_evaluation_progress(fraction);
    return !stop_->stop_evaluation();
  };
  const int64_t max_rows = args_.per_device_eval_batch_size;
  const int64_t max_tokens = plan_.limits.max_tokens;
  stop_->enter(StopAgreement::Phase::kEvaluation);
  mark_work(comm_, OtherWork::kEvaluation, progress_.step + 1);
  const EvalResult result =
      world().is_single() ? evaluate(*model_, *data_->eval, max_rows, max_tokens, progress)
                          : evaluate_together(*model_, *data_->eval, max_rows, max_tokens, comm_, progress);
  std::optional<ChoiceResult> choices;
  if (choices_ && !result.stopped) choices = choices_->score(*model_, max_rows, max_tokens, comm_, progress);
  stop_->enter(StopAgreement::Phase::kOther);
  if (result.stopped || (choices && choices->stopped)) return false;
  const LogEntry entry = evaluation_entry(result, choices);
  log_.add(entry, progress_);
  observer_.on_evaluation(result);
  ++totals_.times().num_evaluations;
  if (clock_) clock_->add(RunPart::kEvaluation, time.seconds());
  // As in Hugging Face's Trainer, what was there before the first step does not count.
  if (progress_.step == 0) return false;
  const std::optional<double> watched = value_of(entry, best_rule_.metric());
  schedule_->observe_metric(watched.value_or(result.loss), best_rule_.greater_is_better());
  return best_rule_.observe(entry, progress_.step, &progress_.best);
}

void Trainer::save() {
  const AddedTime added(&totals_.times().checkpoint_s);
  ++totals_.times().num_checkpoints;
  files_->finish_checkpoint(progress_.step);
  find_best_checkpoint();
  files_->save(run_record(), spared_step());
}

void Trainer::take_snapshot() {
  const NetworkMeterPause pause(network_meter_);
  std::string run;
  snapshots_->write(progress_.step, [&] {
    run = training_record_json(record_now());
    return SnapshotTexts{run, log_.text()};
  });
}

TrainerState Trainer::trainer_state(const Progress& progress) const {
  TrainerState state;
  const BestModel& best = progress.best;
  state.best_metric = best.value;
  if (best.step > 0) state.best_global_step = best.step;
  if (best.checkpoint_step > 0) state.best_model_checkpoint = best_folder(best.checkpoint_step);
  if (args_.early_stopping_patience) {
    state.early_stopping = {*args_.early_stopping_patience, args_.early_stopping_threshold,
                            best.num_not_better};
  }
  state.global_step = progress_.step;
  state.epoch = progress_.epoch;
  state.max_steps = plan_.max_steps;
  state.num_train_epochs = (plan_.max_steps + plan_.steps_per_epoch - 1) / plan_.steps_per_epoch;
  state.train_batch_size = args_.per_device_train_batch_size;
  state.logging_steps = actions_->logging_steps();
  state.eval_steps = actions_->eval_steps();
  state.save_steps = actions_->save_steps();
  state.num_input_tokens_seen = progress_.num_input_tokens_seen;
  state.total_flos = progress_.total_flos;
  state.log_history = log_.history();
  return state;
}

TrainingRecord Trainer::record_now() const {
  TrainingRecord record = record_;
  record.progress = progress_;
  for (const auto& guard : guards_) guard->save(&record.progress);
  record.progress.plateau = schedule_->plateau();
  return record;
}

RunRecord Trainer::run_record() const {
  const bool is_last = is_done() || stop_->agreed_signal() != 0;
  TrainingRecord record = record_now();
  // This checkpoint, which counts once it is complete.
  record.progress.best.checkpoint_step = spared_step();
  return {
      .step = progress_.step,
      .run_json = training_record_json(record),
      .trainer_state_json = trainer_state_json(trainer_state(record.progress), /*should_save=*/true, is_last),
      .training_args_json = training_arguments_json(args_)};
}

TrainSummary Trainer::finish_run() {
  {
    const AddedTime added(&totals_.times().checkpoint_s);
    files_->finish_checkpoint(progress_.step);
  }
  if (snapshots_) snapshots_->finish();
  find_best_checkpoint();
  TrainSummary summary = summarize();
  if (is_done()) {
    if (is_root() && progress_.step < plan_.max_steps) {
      log_info("stopped early after step {}: {} in a row without a better {}; the best is {}", progress_.step,
               count_of(progress_.best.num_not_better, "evaluation"), progress_.best.metric,
               *progress_.best.value);
    }
    const AddedTime added(&totals_.times().model_s);
    if (args_.load_best_model_at_end) load_best_model();
    const double num_samples = args_.max_steps > 0 ? static_cast<double>(progress_.step * plan_.step_rows)
                                                   : static_cast<double>(plan_.num_rows) * progress_.epoch;
    log_.add(final_entry(progress_, num_samples, summary.runtime_s), progress_);
    files_->write_model(progress_.step,
                        [this] { return trainer_state_json(trainer_state(progress_), false, true); });
    if (progress_.best.checkpoint_step > 0) files_->keep_only_best(progress_.best.checkpoint_step);
  } else {
    summary.stop_signal = stop_->agreed_signal();
    const AddedTime added(&totals_.times().checkpoint_s);
    if (args_.save_on_sigterm && output_is_shared_) {
      files_->save_before_stop(
          progress_.step, [this] { return run_record(); }, spared_step());
    }
    summary.folder = files_->last_checkpoint();
  }
  mark_work(comm_, OtherWork::kEndOfRun, progress_.step + 1);
  summary.peak_resident_bytes = peak_resident_bytes();
  if (const auto written = files_->take_written()) totals_.add(*written);
  add_times(&summary);
  report_warnings();
  observer_.on_finish(summary);
  return summary;
}

}  // namespace tessera
