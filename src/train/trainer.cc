// The loop of a run and its single step; evaluations are in trainer_evaluation.cc, the summary in
// trainer_summary.cc.
#include "train/trainer.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/divide_up.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/checkpoint_files.h"
#include "plan/passes.h"
#include "platform/memory_info.h"
#include "report/log_entries.h"
#include "report/run_phase.h"

namespace tessera {

namespace {

// Measures the memory of rank 0's node once a step has touched everything that steps need. Collective;
// nullopt if the system does not provide the figures.
std::optional<MeasuredMemory> measure_memory(Communicator& comm, const Device& device,
                                             int64_t loading_peak_bytes) {
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
  if (const auto memory = device.own_memory()) {
    // used_bytes counts all ranks on the device together.
    measured.device_bytes =
        memory->used_bytes / divide_up(comm.world().local_world_size, memory->num_devices);
  }
  return is_known ? std::optional(measured) : std::nullopt;
}

ExportOptions export_options_of(const RunSetup& setup) {
  ExportOptions options;
  options.save_dtype = setup.spec.precision.export_dtype();
  options.tokenizer_folder = tokenizer_folder(setup.spec.model);
  options.chat_template = setup.data->chat_template;
  options.end_of_answer = setup.data->end_of_answer;
  options.eos_token = setup.data->eos_token;
  options.generation_config = std::filesystem::path(setup.spec.model.folder) / "generation_config.json";
  return options;
}

StepOptions step_options_of(const RunSetup& setup) {
  const RunSpec& spec = setup.spec;
  return {spec.objective.label_smoothing, spec.guards.replay_check_steps, spec.objective.neftune_alpha,
          static_cast<uint64_t>(spec.seed),
          setup.model->is_adapted() ? setup.model->config().lora->lora_dropout : 0};
}

}  // namespace

Trainer::Trainer(const RunSpec& spec, ThreadPool& pool, TrainObserver& observer, Communicator& comm,
                 const OpsFactory& make_ops)
    : warnings_(comm.world().rank == 0 ? std::make_unique<LogTap>() : nullptr),
      setup_(spec, pool, observer, comm, make_ops),
      network_meter_(comm.rail()),
      disk_meter_(*setup_.model, *setup_.parameters, setup_.frozen ? &*setup_.frozen : nullptr),
      stop_(comm, network_meter_,
            {setup_.spec.saving.on_sigterm, setup_.spec.time_to_end_s(),
             [this] { return files_.write_estimate_s(); }}),
      files_(setup_.spec, comm, pool, *setup_.model, setup_.parameters->state(), network_meter_,
             setup_.observers,
             {export_options_of(setup_), setup_.plan.snapshot_bytes, setup_.output_is_shared,
              *setup_.resume ? setup_.resume->last_saved_step() : -1}),
      runner_(*setup_.model, *setup_.parameters, setup_.data->train, comm, pool, stop_, *setup_.clocked_ops,
              setup_.context_rank(), setup_.experts ? &*setup_.experts : nullptr, step_options_of(setup_)),
      update_(setup_.spec.clipping, setup_.spec.placement.optimizer_in_backward, *setup_.schedule,
              *setup_.parameters, runner_, files_.saver(), comm),
      gather_(comm.world(), !setup_.spec.placement.offload_dir.empty(), trains_apart()),
      guards_(make_step_guards(setup_.spec.guards, *setup_.model, setup_.data->train, *setup_.parameters,
                               comm, setup_.context_rank())),
      best_rule_(setup_.spec.evaluation),
      log_(spec.reporting.tokens_seen != TokensSeen::kNo, setup_.observers),
      best_checkpoint_(setup_, best_rule_, log_.history()) {
  if (*setup_.resume) restore_progress();
  if (setup_.snapshots) setup_.snapshots->open(setup_.model->layout(), setup_.parameters->state());
}

void Trainer::restore_progress() {
  progress_ = setup_.resume->record().progress;
  BestModel& best = progress_.best;
  if (best.metric != best_rule_.metric() || best.greater_is_better != best_rule_.greater_is_better()) {
    if (is_root() && !best.metric.empty() && !best_rule_.metric().empty()) {
      log_warning("the best {} so far, {}, does not count for metric_for_best_model {}{}", best.metric,
                  *best.value, best_rule_.metric(),
                  best.metric == best_rule_.metric() ? " in the other direction" : "");
    }
    best = {};
    best_checkpoint_.begin_after(progress_.step - 1);
  }
  log_.restore(setup_.resume->log_history());
  for (const auto& guard : guards_) guard->restore(progress_);
  if (progress_.plateau) setup_.schedule->restore(*progress_.plateau);
  if (is_root() && setup_.schedule->plateau() &&
      setup_.schedule->learning_rate(progress_.step) != setup_.spec.schedule.learning_rate) {
    log_info("lr_scheduler_type {} continues with a learning rate of {}",
             schedule_type(setup_.spec.schedule.form), setup_.schedule->learning_rate(progress_.step));
  }
}

TrainSummary Trainer::run(const std::function<int()>& stop_signal, RunControl* control) {
  TESSERA_CHECK(!std::exchange(has_run_, true), "a trainer runs once");
  try {
    return train(stop_signal, control);
  } catch (const Error& error) {
    report_warnings();
    setup_.observers.on_error(error.what());
    throw;
  }
}

TrainSummary Trainer::train(const std::function<int()>& stop_signal, RunControl* control) {
  const bool is_finished = is_finished_already();
  if (!is_finished) {
    files_.open(*setup_.resume && setup_.resume->is_in_place() ? std::optional(progress_.step) : std::nullopt,
                setup_.plan);
  }
  if (*setup_.resume) setup_.resume->report(setup_.record, setup_.observers);
  if (is_finished) {
    if (is_root())
      log_info("nothing is left to do: {} has the model of step {}", setup_.spec.output_dir, progress_.step);
    return summarize();
  }
  totals_ = RunTotals();
  totals_.times().startup_s = setup_.since_start.seconds();
  if (is_root())
    clock_.emplace(*setup_.actions, setup_.plan.max_steps, setup_.spec.guards.replay_check_steps);
  has_control_ = setup_.comm.broadcast(control != nullptr, 0, {"control"});
  setup_.comm.rail().wait_for_all();  // loading has begun transfers
  network_meter_.start();
  stop_.listen(stop_signal);
  if (begins_with_evaluation()) run_evaluation();
  while (!is_done() && !stop_.is_wanted()) {
    setup_.peak->measure_if_due(progress_.step + 1);
    const Stopwatch step_time;
    if (!wait_for_rows(progress_.step)) break;
    const std::optional<StepMetrics> metrics = train_step(progress_.step, step_time);
    if (!metrics) {
      setup_.parameters->discard_step();
      break;
    }
    files_.report_checkpoint();
    account(*metrics);
    if (totals_.num_steps() == 1) {
      const NetworkMeterPause pause(network_meter_);
      setup_.parameters->finish_update();  // it touches the optimizer's state
      const auto measured = measure_memory(setup_.comm, setup_.model->device(), setup_.loading_peak_bytes);
      if (measured) setup_.observers.on_memory(setup_.plan.memory, *measured);
    }
    act_after_step(control);
  }
  return finish_run();
}

void Trainer::act_after_step(RunControl* control) {
  const StepActions due = setup_.actions->after(progress_.step);
  RunRequests wanted = requests(control);
  if (due.log || wanted.log) log_.add_training(totals_.last_step(), &progress_);
  const bool evaluates = due.evaluate || (wanted.evaluate && !setup_.data->evals.empty());
  const bool is_best = evaluates && run_evaluation();
  if (due.log || wanted.log || evaluates) wanted |= requests(control);
  if (due.save || wanted.save || (is_best && setup_.spec.saving.strategy == SaveStrategy::kBest)) save();
  if (due.snapshot) take_snapshot();
  stop_requested_ = wanted.stop;
}

RunRequests Trainer::requests(RunControl* control) {
  if (!has_control_) return {};
  const NetworkMeterPause pause(network_meter_);
  const PatientScope patience(setup_.comm);
  mark_phase(setup_.comm, RunPhase::kWaitingForCallbacks, progress_.step);
  return setup_.comm.broadcast(control != nullptr ? control->requests() : RunRequests(), 0, {"requests"});
}

// True if the finished model is there, too, and nothing else is due.
bool Trainer::is_finished_already() {
  if (!*setup_.resume || !is_done() || begins_with_evaluation()) return false;
  bool is_there =
      is_root() && setup_.resume->is_in_place() && finished_step(setup_.spec.output_dir) == progress_.step;
  if (is_there && !files_.has_model()) {
    log_warning(
        "{}: the run ended at step {}, but files of its model are missing or cut short: it is written again",
        setup_.spec.output_dir, progress_.step);
    is_there = false;
  }
  return setup_.comm.broadcast(is_there, 0, {"resume"});
}

bool Trainer::wait_for_rows(int64_t step) {
  if (setup_.spec.data.dataset_spool.empty()) return true;
  mark_phase(setup_.comm, "waiting for rows", step + 1);
  const PatientScope patience(setup_.comm);  // nodes may have feeders of their own
  const bool arrived = setup_.rows->wait_for_rows(step, [this] {
    setup_.comm.failures().check();
    return stop_.has_signal();
  });
  return !stop_.stop_waiting(!arrived);
}

std::optional<StepMetrics> Trainer::train_step(int64_t step, const Stopwatch& step_time) {
  stop_.begin_step();
  // Excludes the traffic of evaluations and checkpoints.
  disk_meter_.take();
  if (setup_.context) setup_.context->all_to_all().take_network();
  if (setup_.experts) setup_.experts->take_network();
  mark_phase(setup_.comm, "choosing rows", step + 1);
  const RowLists& passes = setup_.rows->passes_of_step(step);
  const int64_t num_targets = setup_.rows->count_targets(step, passes);
  const double choosing_s = step_time.seconds();
  update_.begin_step(step, progress_);
  if (num_targets == 0 && !std::exchange(has_named_empty_step_, true) && is_root()) {
    log_warning(
        "step {}: its rows have no token to predict: loss and gradients are 0, and the optimizer steps on "
        "its "
        "momentum and weight decay, as in Transformers; the {} (from 0)",
        step + 1, name_rows(passes));
  }
  std::optional<StepPart> part = runner_.run(step, passes, loss_divisor(step, passes, num_targets));
  if (!part) return std::nullopt;
  const double waited_before_s = setup_.comm.waited_s();
  {
    const NetworkMeterPause pause(network_meter_);
    part->network = network_meter_.take();
    part->network.add(setup_.parameters->take_network());
    if (setup_.context) part->network.add(setup_.context->all_to_all().take_network());
    if (setup_.experts) part->network.add(setup_.experts->take_network());
    part->disk = disk_meter_.take();
    gather_.run(*part, stop_.share(), files_.saver().share(), setup_.peak->share(), setup_.comm);
  }
  const bool is_complete = stop_.take_shares(gather_.stops);
  setup_.peak->take_shares(gather_.peaks);
  files_.saver().take_shares(gather_.checkpoints);
  if (!is_complete) return std::nullopt;

  StepMetrics metrics = gather_.sums(num_targets);
  metrics.step = step + 1;
  metrics.num_micro_batches = micro_batches_of(passes);
  metrics.epoch = setup_.rows->batches().epoch_after(step + 1);
  metrics.learning_rate = setup_.schedule->learning_rate(step);
  if (runner_.rehearsal_s() > 0) metrics.replay_check_s = runner_.rehearsal_s();
  metrics.skipped = !passes_guards(passes, &metrics);
  metrics.times.rows_s += choosing_s;
  if (!metrics.skipped) {
    update_.finish_step(passes, gather_.parts[static_cast<size_t>(world().rank)], gather_.norm_for(world()),
                        progress_, &metrics);
    ++progress_.num_updates;
    progress_.last_grad_norm = metrics.grad_norm;
  } else {
    setup_.parameters->discard_step();
  }
  if (metrics.disk) {
    metrics.disk->add(disk_meter_.take());
    metrics.times.disk_s = metrics.disk->wait_s();
    metrics.times.optimizer_s = std::max(0.0, metrics.times.optimizer_s - metrics.disk->state_wait_s);
  }
  metrics.times.wait_s += setup_.comm.waited_s() - waited_before_s;
  metrics.step_time_s = step_time.seconds();
  metrics.times.other_s = std::max(0.0, metrics.step_time_s - metrics.times.listed_s());
  metrics.tokens_per_second = static_cast<double>(metrics.num_tokens) / metrics.step_time_s;
  double flops = 0, compute_s = 0;
  for (const StepPart& of_rank : gather_.parts) {
    flops += of_rank.flops;
    compute_s += of_rank.compute_s;
  }
  metrics.tflops = flops * 1e-12 / metrics.step_time_s;
  metrics.mfu = setup_.peak->share_of_peak(metrics.tflops);
  metrics.peak = setup_.peak->best();
  stop_.end_step(metrics.step_time_s, compute_s / static_cast<double>(passes.size()));
  return metrics;
}

int64_t Trainer::micro_batches_of(const RowLists& passes) const {
  const int64_t num_rows = std::ssize(passes.all_rows());
  const DataRecord& data = setup_.record.data;
  return divide_up(num_rows, data.micro_batch_size * data.world_size);
}

LossDivisor Trainer::loss_divisor(int64_t step, const RowLists& passes, int64_t num_targets) const {
  const auto of_team = [&](int64_t team) {
    return static_cast<double>(std::max<int64_t>(1, setup_.rows->count_targets_of_team(step, passes, team)));
  };
  const auto all = static_cast<double>(std::max<int64_t>(1, num_targets));
  // Nodes that train on their own each take the mean over their own rows.
  if (trains_apart()) return {of_team(world().node_rank)};
  if (setup_.spec.objective.average_tokens_across_devices || world().is_single()) return {all};
  // Every rank's mean counts the same.
  const double own = of_team(world().rank) * static_cast<double>(world().world_size);
  return {own, all / own};
}

bool Trainer::passes_guards(const RowLists& passes, StepMetrics* metrics) {
  const CheckedStep step = {metrics, gather_.parts, &passes, &runner_.replay_difference()};
  for (const auto& guard : guards_) {
    const GuardVerdict verdict = guard->check(step);
    if (verdict.action == GuardVerdict::Action::kSkip) return false;
    if (verdict.action == GuardVerdict::Action::kUpdate) continue;
    files_.finish_checkpoint(metrics->step);
    fail(ExitCode::kNumerics, "{}", verdict.reason);
  }
  return true;
}

void Trainer::report_warnings() {
  if (!warnings_) return;
  for (const std::string& message : warnings_->take()) setup_.observers.on_warning(message);
}

void Trainer::account(StepMetrics metrics) {
  metrics.checkpoint = files_.take_written();
  if (setup_.snapshots) metrics.peer_snapshot_s = setup_.snapshots->take_stall_s();
  progress_.step = metrics.step;
  progress_.epoch = metrics.epoch;
  progress_.num_input_tokens_seen += metrics.num_tokens;
  progress_.total_flos += floating_point_ops(*setup_.model, metrics.num_tokens);
  count_loss(metrics, &progress_);
  totals_.add(metrics);
  if (clock_) {
    clock_->add_step(metrics);
    metrics.eta_s = clock_->seconds_left(metrics.step, estimates());
  }
  setup_.observers.on_step(metrics);
  report_warnings();
}

void Trainer::save() {
  const AddedTime added(&totals_.times().checkpoint_s);
  ++totals_.times().num_checkpoints;
  files_.finish_checkpoint(progress_.step);
  best_checkpoint_.find(&progress_.best);
  files_.save(run_record(), best_checkpoint_.spared_step(progress_));
}

void Trainer::synchronize() {
  setup_.parameters->state().synchronize(
      [this](ElementRange elements) { files_.saver().before_change(elements); });
}

void Trainer::take_snapshot() {
  const NetworkMeterPause pause(network_meter_);
  setup_.parameters->state().settle(
      [this](ElementRange elements) { files_.saver().before_change(elements); });
  std::string run;
  setup_.snapshots->write(progress_.step, [&] {
    run = training_record_json(record_now(progress_.best.checkpoint_step));
    return SnapshotTexts{run, log_.text()};
  });
}

TrainerState Trainer::trainer_state(const Progress& progress) const {
  TrainerState state;
  const BestModel& best = progress.best;
  state.best_metric = best.value;
  if (best.step > 0) state.best_global_step = best.step;
  if (best.checkpoint_step > 0) state.best_model_checkpoint = checkpoint_folder(setup_, best.checkpoint_step);
  if (setup_.spec.evaluation.early_stopping_patience) {
    state.early_stopping = {*setup_.spec.evaluation.early_stopping_patience,
                            setup_.spec.evaluation.early_stopping_threshold, best.num_not_better};
  }
  state.global_step = progress_.step;
  state.epoch = progress_.epoch;
  state.max_steps = setup_.plan.max_steps;
  state.num_train_epochs =
      (setup_.plan.max_steps + setup_.plan.steps_per_epoch - 1) / setup_.plan.steps_per_epoch;
  state.train_batch_size = setup_.spec.batch.rows_per_device;
  state.logging_steps = setup_.actions->logging_steps();
  state.eval_steps = setup_.actions->eval_steps();
  state.save_steps = setup_.actions->save_steps();
  state.num_input_tokens_seen = progress_.num_input_tokens_seen;
  state.total_flos = progress_.total_flos;
  state.log_history = log_.history();
  return state;
}

TrainingRecord Trainer::record_now(int64_t best_checkpoint_step) const {
  TrainingRecord record = setup_.record;
  record.progress = progress_;
  record.progress.best.checkpoint_step = best_checkpoint_step;
  record.progress.best.checkpoint_folder = folder_elsewhere(setup_, best_checkpoint_step);
  for (const auto& guard : guards_) guard->save(&record.progress);
  record.progress.plateau = setup_.schedule->plateau();
  return record;
}

RunRecord Trainer::run_record() const {
  const bool is_last = is_done() || stop_.agreed_signal() != 0;
  // This checkpoint, if it is the best, counts once it is complete.
  const TrainingRecord record = record_now(best_checkpoint_.spared_step(progress_));
  return {
      .step = progress_.step,
      .run_json = training_record_json(record),
      .trainer_state_json = trainer_state_json(trainer_state(record.progress), /*should_save=*/true, is_last),
      .training_args_json = training_arguments_json(setup_.spec)};
}

TrainSummary Trainer::finish_run() {
  {
    const AddedTime added(&totals_.times().checkpoint_s);
    files_.finish_checkpoint(progress_.step);
  }
  if (setup_.snapshots) setup_.snapshots->finish();
  best_checkpoint_.find(&progress_.best);
  TrainSummary summary = summarize();
  if (is_done()) {
    synchronize();
    if (is_root() && stop_requested_) {
      log_info("stopped after step {}, as asked for", progress_.step);
    } else if (is_root() && progress_.step < setup_.plan.max_steps) {
      log_info("stopped early after step {}: {} in a row without a better {}; the best is {}", progress_.step,
               count_of(progress_.best.num_not_better, "evaluation"), progress_.best.metric,
               *progress_.best.value);
    }
    const AddedTime added(&totals_.times().model_s);
    if (setup_.spec.evaluation.load_best_model) best_checkpoint_.load(progress_);
    const double num_samples = setup_.spec.batch.max_steps > 0
                                   ? static_cast<double>(progress_.step * setup_.plan.step_rows)
                                   : static_cast<double>(setup_.plan.num_rows) * progress_.epoch;
    log_.add(final_entry(progress_, num_samples, summary.runtime_s), progress_);
    setup_.parameters->state().discard_tensors();  // plan_disk() counts on their room for the model
    files_.write_model(progress_.step,
                       [this] { return trainer_state_json(trainer_state(progress_), false, true); });
    if (progress_.best.checkpoint_step > 0) files_.keep_only_best(progress_.best.checkpoint_step);
  } else {
    summary.stop_signal = stop_.agreed_signal();
    const AddedTime added(&totals_.times().checkpoint_s);
    if (setup_.spec.saving.on_sigterm && setup_.output_is_shared) {
      files_.save_before_stop(
          progress_.step, [this] { return run_record(); }, best_checkpoint_.spared_step(progress_));
    }
    summary.folder = files_.last_checkpoint();
  }
  mark_phase(setup_.comm, RunPhase::kEndOfRun, progress_.step + 1);
  summary.peak_resident_bytes = peak_resident_bytes();
  if (const auto written = files_.take_written()) totals_.add(*written);
  add_times(&summary);
  report_warnings();
  setup_.observers.on_finish(summary);
  return summary;
}

}  // namespace tessera
