// What a run tells and writes: logs, evaluations, checkpoints, the finished model.
#include <algorithm>
#include <array>
#include <cmath>
#include <exception>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/shared_export.h"
#include "formats/file.h"
#include "platform/memory_info.h"
#include "train/first_failure.h"
#include "train/trainer.h"

namespace tessera {
namespace {

const OpLabel kModelLabel = {"written model"};

// speed_metrics of transformers/trainer_utils.py: PREFIX_runtime, _samples_per_second, _steps_per_second.
void add_speed(const std::string& prefix, double runtime_s, double num_samples, int64_t num_steps,
               LogEntry* entry) {
  entry->values.emplace_back(prefix + "_runtime", round_decimals(runtime_s, 4));
  entry->values.emplace_back(prefix + "_samples_per_second", round_decimals(num_samples / runtime_s, 3));
  entry->values.emplace_back(prefix + "_steps_per_second",
                             round_decimals(static_cast<double>(num_steps) / runtime_s, 3));
}

// Hugging Face's floating_point_ops: 6 per token and parameter outside the input embeddings, forward and
// backward.
double step_flops(const Model& model, int64_t num_tokens) {
  const int64_t embeddings = model.config().vocab_size * model.config().hidden_size;
  const int64_t counted = model.layout().num_parameters() - embeddings;
  return 6.0 * static_cast<double>(num_tokens) * static_cast<double>(counted);
}

// A restart finds it as it is, and the disk busy: a checkpoint was just being written.
void write_if_different(const std::filesystem::path& path, const std::string& text) {
  std::error_code ignored;
  const bool exists = std::filesystem::exists(path, ignored);
  if (!exists || read_text_file(path) != text) write_text_file(path, text);
}

}  // namespace

void Trainer::open_output() {
  if (!is_root()) return;
  output_.emplace(args_.output_dir);
  if (resumes_in_place()) {
    output_->keep_former_run(state_.global_step);
  } else {
    output_->set_aside_former_run();
  }
  if (!output_->previous_folder().empty()) observer_->on_previous_run(output_->previous_folder());
  write_if_different(output_->path() / "training_args.json", training_arguments_json(args_));
  metrics_file_.emplace(output_->path() / "metrics.jsonl", resumes_in_place() ? state_.global_step : 0);
}

// After the first step everything that a step needs has been touched.
void Trainer::measure_memory() {
  const NetworkMeterPause pause(network_meter_);
  const std::optional<ProportionalMemory> mine = proportional_memory();
  std::array<double, 4> sums = {mine ? 0.0 : 1.0};
  if (mine && world().node_rank == 0) {
    sums = {0, static_cast<double>(mine->private_bytes()), static_cast<double>(mine->shared_bytes),
            static_cast<double>(loading_peak_bytes_)};
  }
  comm_->all_reduce_sum(sums, {"measured memory"});
  if (sums[0] > 0 || !is_root()) return;
  const MeasuredMemory measured = {{std::llround(sums[1]), std::llround(sums[2])}, std::llround(sums[3])};
  observer_->on_memory(run_plan_.memory, measured);
  try {
    write_text_file(output_->path() / "memory.json", memory_json(run_plan_.memory, measured));
  } catch (const Error& error) {
    log_warning("{}; training goes on", error.what());
  }
}

void Trainer::account(StepMetrics metrics) {
  metrics.checkpoint = std::exchange(written_, std::nullopt);
  metrics.peer_snapshot_s = std::exchange(snapshot_s_, std::nullopt);
  state_.global_step = metrics.step;
  state_.epoch = metrics.epoch;
  state_.num_input_tokens_seen += metrics.num_tokens;
  state_.total_flos += step_flops(*model_, metrics.num_tokens);
  if (!metrics.skipped) {
    loss_since_log_ += metrics.loss;
    ++losses_since_log_;
    total_loss_ += metrics.loss;
  }
  total_step_time_s_ += metrics.step_time_s;
  total_model_flops_ += metrics.tflops * 1e12 * metrics.step_time_s;
  if (metrics.network && metrics.step > first_step_ + 1) {
    total_network_.sent_bytes += metrics.network->sent_bytes;
    total_network_.received_bytes += metrics.network->received_bytes;
    total_network_.time_s += metrics.network->time_s;
    total_hidden_s_ += metrics.network->time_s * metrics.network->hidden;
  }
  last_step_ = metrics;
  observer_->on_step(metrics);  // before anything that takes memory, as tests of a step's memory rely on
  if (metrics_file_) metrics_file_->write(metrics);
}

void Trainer::add_log(LogEntry entry) {
  entry.epoch = state_.epoch;
  entry.step = state_.global_step;
  if (args_.include_num_input_tokens_seen != "no") {
    entry.values.emplace_back("num_input_tokens_seen", state_.num_input_tokens_seen);
  }
  state_.log_history.push_back(entry);
  observer_->on_log(entry);
}

void Trainer::log_training() {
  if (losses_since_log_ == 0) return;
  LogEntry entry;
  entry.values = {{"loss", loss_since_log_ / static_cast<double>(losses_since_log_)},
                  {"grad_norm", last_step_.grad_norm},
                  {"learning_rate", last_step_.learning_rate}};
  loss_since_log_ = 0;
  losses_since_log_ = 0;
  add_log(std::move(entry));
}

void Trainer::run_evaluation() {
  const NetworkMeterPause pause(network_meter_);
  const auto progress = [this](double fraction) {
    observer_->on_evaluation_progress(fraction);
    return !stop_together(received_signal() != 0);
  };
  const int64_t max_rows = args_.per_device_eval_batch_size;
  in_evaluation_ = true;
  const EvalResult result =
      world().is_single()
          ? evaluate(*model_, *eval_dataset_, max_rows, limits_.max_tokens, progress)
          : evaluate_together(*model_, *eval_dataset_, max_rows, limits_.max_tokens, *comm_, progress);
  in_evaluation_ = false;
  if (result.stopped) return;
  LogEntry entry;
  entry.values = {{"eval_loss", result.loss}};
  add_speed("eval", result.runtime_s, static_cast<double>(result.num_rows), result.num_batches, &entry);
  add_log(std::move(entry));
  observer_->on_evaluation(result);
  schedule_->observe_metric(result.loss, /*greater_is_better=*/false);
}

ExportOptions Trainer::export_options() const {
  ExportOptions options;
  options.save_dtype = args_.export_dtype();
  options.tokenizer_folder = tokenizer_folder();
  options.generation_config = std::filesystem::path(args_.model) / "generation_config.json";
  return options;
}

void Trainer::export_model(const std::filesystem::path& folder) {
  handed_over_ = true;
  parameters_->export_masters([&](const WeightSource& source) {
    export_model_folder(folder, model_->config(), model_->layout(), source, export_options());
  });
}

void Trainer::write_model() {
  mark_work("writing the model");
  const PatientScope patience(*comm_);
  const NetworkMeterPause pause(network_meter_);
  if (world().is_single()) {
    write_as_first_rank([this](const std::filesystem::path& folder) { export_model(folder); });
  } else if (!output_is_shared_) {
    hand_over_to_first_rank();
  } else if (is_root()) {
    write_as_first_rank([this](const std::filesystem::path& folder) { export_parts(folder); });
  } else {
    export_parts(OutputFolder::unfinished_model(args_.output_dir));
  }
  comm_->barrier(kModelLabel);
}

void Trainer::write_as_first_rank(const std::function<void(const std::filesystem::path&)>& export_to) {
  output_->replace_model(export_to);
  write_text_file(output_->path() / kTrainerStateName, trainer_state_json(state_, false, true));
}

// Every rank what it owns, as in a checkpoint.
void Trainer::export_parts(const std::filesystem::path& folder) {
  SharedExport files(folder, model_->config(), model_->layout(), export_options());
  uint64_t number = 0;
  const auto all_do = [this](const auto& action) {
    if (const auto told = first_error(*comm_, outside_error(action), kModelLabel)) {
      fail(told->code, "{}", told->message);
    }
  };
  all_do([&] {
    if (is_root()) number = files.create();
  });
  comm_->broadcast(std::as_writable_bytes(std::span(&number, 1)), 0, kModelLabel);
  all_do([&] {
    files.write(number, parameters_->owned(), [this](int64_t begin, std::span<float> values) {
      parameters_->read_state(StateKind::kMaster, begin, values);
    });
  });
  if (is_root()) files.commit();
}

// Nodes without a common folder.
void Trainer::hand_over_to_first_rank() {
  std::exception_ptr failure;
  handed_over_ = false;
  try {
    if (is_root()) {
      write_as_first_rank([this](const std::filesystem::path& folder) { export_model(folder); });
    }
  } catch (...) {
    failure = std::current_exception();
  }
  // The others do their part even when rank 0 did not get as far.
  if (!handed_over_ && !comm_->failures().failed()) parameters_->export_masters([](const WeightSource&) {});
  if (failure) std::rethrow_exception(failure);
}

CheckpointPlan Trainer::checkpoint_plan() const {
  CheckpointPlan plan;
  plan.folder = std::filesystem::path(args_.output_dir) / checkpoint_name(state_.global_step);
  plan.config = &model_->config();
  plan.layout = &model_->layout();
  plan.export_options = export_options();
  plan.rank = world().rank;
  plan.world_size = world().world_size;
  return plan;
}

void Trainer::update_record() {
  record_.progress = {.step = state_.global_step,
                      .epoch = state_.epoch,
                      .num_input_tokens_seen = state_.num_input_tokens_seen,
                      .total_flos = state_.total_flos,
                      .total_loss = total_loss_,
                      .loss_since_log = loss_since_log_,
                      .losses_since_log = losses_since_log_,
                      .num_updates = num_updates_,
                      .num_skipped_in_a_row = num_skipped_in_a_row_};
  record_.loss_spikes = loss_spikes_.history();
  record_.plateau = schedule_->plateau();
}

RunRecord Trainer::run_record() {
  update_record();
  const bool is_last = state_.global_step == state_.max_steps || agreed_signal_ != 0;
  return {.step = state_.global_step,
          .run_json = training_record_json(record_),
          .trainer_state_json = trainer_state_json(state_, /*should_save=*/true, is_last),
          .training_args_json = training_arguments_json(args_)};
}

void Trainer::save_checkpoint() {
  finish_checkpoint();
  mark_work("beginning a checkpoint");
  const NetworkMeterPause pause(network_meter_);
  const int64_t step = state_.global_step;
  saver_->begin(checkpoint_plan(), run_record(),
                [this, step] { output_->checkpoint_written(step, args_.save_total_limit); });
  if (!args_.async_save) saver_->finish();
  report_checkpoint();
}

void Trainer::finish_checkpoint() {
  mark_work("finishing a checkpoint");
  const NetworkMeterPause pause(network_meter_);
  saver_->finish();
  report_checkpoint();
}

// A full or failing disk loses a checkpoint, not the run.
void Trainer::report_checkpoint() {
  if (!is_root()) return;
  const std::optional<CheckpointOutcome> outcome = saver_->take_outcome();
  if (!outcome) return;
  checkpoint_error_ = outcome->error;
  if (!outcome->error.empty()) {
    if (!saves_before_stop_) observer_->on_checkpoint_failed(outcome->folder, outcome->error);
    return;
  }
  last_saved_step_ = outcome->step;
  written_ = CheckpointUse{outcome->step, outcome->bytes, outcome->write_s, outcome->stall_s};
  observer_->on_checkpoint(outcome->folder);
}

// Rank 0 knows what is complete.
void Trainer::save_before_stop() {
  const bool is_saved = state_.global_step == 0 || last_saved_step_ == state_.global_step;
  std::array<double, 1> needed = {is_root() && !is_saved ? 1.0 : 0.0};
  comm_->all_reduce_sum(needed, {"checkpoint"});
  if (needed[0] == 0) return;
  saves_before_stop_ = true;
  save_checkpoint();
  finish_checkpoint();
  if (is_root() && last_saved_step_ != state_.global_step) {
    fail(ExitCode::kIoError, "{}", checkpoint_error_);
  }
}

LogEntry Trainer::final_log(double runtime_s) const {
  const double num_samples = args_.max_steps > 0 ? static_cast<double>(state_.global_step * step_rows_)
                                                 : static_cast<double>(run_plan_.num_rows) * state_.epoch;
  LogEntry entry;
  add_speed("train", runtime_s, num_samples, state_.global_step, &entry);
  entry.values.emplace_back("total_flos", state_.total_flos);
  entry.values.emplace_back("train_loss", mean_loss());
  return entry;
}

std::optional<NetworkUse> Trainer::mean_network_use() const {
  const int64_t num_steps = state_.global_step - first_step_ - 1;
  if (world().num_nodes == 1 || num_steps < 1) return std::nullopt;
  NetworkUse mean;
  mean.sent_bytes = total_network_.sent_bytes / num_steps;
  mean.received_bytes = total_network_.received_bytes / num_steps;
  mean.time_s = total_network_.time_s / static_cast<double>(num_steps);
  mean.hidden = total_network_.time_s > 0 ? total_hidden_s_ / total_network_.time_s : 1;
  return mean;
}

TrainSummary Trainer::summarize() {
  TrainSummary summary;
  summary.num_steps = state_.global_step;
  summary.epoch = state_.epoch;
  summary.train_loss = mean_loss();
  summary.runtime_s = run_time_.seconds();
  summary.num_tokens = state_.num_input_tokens_seen;
  const double steps_s = std::max(total_step_time_s_, 1e-9);
  summary.tokens_per_second = static_cast<double>(summary.num_tokens - first_tokens_seen_) / steps_s;
  summary.tflops = total_model_flops_ * 1e-12 / steps_s;
  summary.mfu = share_of_peak(summary.tflops);
  summary.peak = best_peak();
  summary.network = mean_network_use();
  summary.folder = args_.output_dir;
  summary.peak_resident_bytes = peak_resident_bytes();
  return summary;
}

TrainSummary Trainer::finish_run() {
  finish_checkpoint();
  if (snapshots_) snapshots_->finish();
  TrainSummary summary = summarize();
  if (state_.global_step >= state_.max_steps) {
    add_log(final_log(summary.runtime_s));
    write_model();
  } else {
    summary.stop_signal = agreed_signal_;
    if (args_.save_on_sigterm && output_is_shared_) save_before_stop();
    summary.folder = is_root() && last_saved_step_ > 0 ? output_->checkpoint_folder(last_saved_step_) : "";
  }
  mark_work("the end of the run");
  summary.peak_resident_bytes = peak_resident_bytes();
  observer_->on_finish(summary);
  return summary;
}

}  // namespace tessera
