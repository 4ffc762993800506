#include "train/output/run_files.h"

#include <system_error>
#include <utility>

#include "base/error.h"
#include "checkpoint/checkpoint_files.h"
#include "io/file.h"
#include "report/files/metrics_file.h"
#include "report/files/run_events.h"
#include "report/run_phase.h"
#include "report/sinks/sinks.h"

namespace tessera {
namespace {

// A restart finds it unchanged; the disk is busy then, as a checkpoint may just be being written.
void write_if_different(const std::filesystem::path& path, const std::string& text) {
  std::error_code ignored;
  const bool exists = std::filesystem::exists(path, ignored);
  if (!exists || read_text_file(path) != text) write_text_file(path, text);
}

}  // namespace

RunFiles::RunFiles(const RunSpec& spec, Communicator& comm, ThreadPool& pool, const TrainableModel& model,
                   StoreState& state, NetworkMeter& meter, ObserverList& observers,
                   const RunFilesOptions& options)
    : spec_(spec),
      comm_(comm),
      model_(model),
      meter_(meter),
      observers_(observers),
      state_(state),
      model_writer_(comm, model, state, options.export_options, options.output_is_shared),
      saver_(comm, pool, state,
             {.snapshot_bytes = options.snapshot_bytes,
              .max_bytes_per_second = spec.saving.bytes_per_second.value_or(0) / comm.world().world_size}),
      last_saved_step_(options.last_saved_step) {
  const StoredParts parts(spec.precision.export_dtype(), state.tensors());
  checkpoint_bytes_ = static_cast<double>(stored_bytes(model.layout(), state.owned(), parts));
  for (const ElementRange& range : state.owned()) {
    model_bytes_ += static_cast<double>(parts.bytes(StoredParts::kModel, range.end - range.begin));
  }
}

void RunFiles::open(std::optional<int64_t> resumed_step, const RunPlan& plan) {
  if (!is_root()) return observers_.on_output_folder();
  output_.emplace(spec_.output_dir);
  if (resumed_step) {
    output_->keep_former_run(*resumed_step);
  } else {
    output_->set_aside_former_run();
  }
  observers_.on_output_folder();
  if (!output_->previous_folder().empty()) observers_.on_previous_run(output_->previous_folder());
  write_if_different(output_->path() / "training_args.json", training_arguments_json(spec_));
  const int64_t keep = resumed_step.value_or(0);
  sinks_.push_back(std::make_unique<MetricsFile>(output_->path() / "metrics.jsonl", keep));
  sinks_.push_back(std::make_unique<EventsFile>(spec_, output_->path() / "events.jsonl", keep));
  sinks_.push_back(std::make_unique<MemoryFile>(output_->path() / "memory.json"));
  for (auto& sink :
       make_sinks({spec_, resumed_step, plan.step_rows, model_.config().json}, process_environment())) {
    sinks_.push_back(std::move(sink));
  }
  for (const auto& sink : sinks_) {
    sink->on_plan(plan);
    observers_.add(*sink);
  }
}

CheckpointPlan RunFiles::checkpoint_plan(int64_t step) const {
  CheckpointPlan plan;
  plan.folder = std::filesystem::path(spec_.output_dir) / checkpoint_name(step);
  plan.config = &model_.config();
  plan.layout = &model_.layout();
  plan.state_tensors = state_.tensors();
  plan.export_options = model_writer_.options();
  plan.rank = comm_.world().rank;
  plan.world_size = comm_.world().world_size;
  return plan;
}

void RunFiles::save(const RunRecord& record, int64_t best_step) {
  const int64_t step = record.step;
  finish_checkpoint(step);
  mark_phase(comm_, RunPhase::kBeginningCheckpoint, step + 1);
  const NetworkMeterPause pause(meter_);
  state_.settle({});
  saver_.begin(checkpoint_plan(step), record, [this, step, best_step] {
    output_->checkpoint_written(step, spec_.saving.total_limit, best_step);
  });
  if (!spec_.saving.in_background) saver_.finish();
  report_checkpoint();
}

void RunFiles::finish_checkpoint(int64_t step) {
  mark_phase(comm_, RunPhase::kFinishingCheckpoint, step + 1);
  const NetworkMeterPause pause(meter_);
  saver_.finish();
  report_checkpoint();
}

// A full or failing disk loses a checkpoint, not the run.
void RunFiles::report_checkpoint() {
  if (!is_root()) return;
  const std::optional<CheckpointOutcome> outcome = saver_.take_outcome();
  if (!outcome) return;
  checkpoint_error_ = outcome->error;
  if (!outcome->error.empty()) {
    if (!saves_before_stop_) observers_.on_checkpoint_failed(outcome->use.folder, outcome->error);
    return;
  }
  last_saved_step_ = outcome->use.step;
  written_ = outcome->use;
  observers_.on_checkpoint(outcome->use);
}

void RunFiles::keep_only_best(int64_t best_step) {
  if (output_ && spec_.saving.total_limit == 1) output_->keep_only(best_step);
}

// Rank 0 knows what is complete.
void RunFiles::save_before_stop(int64_t step, const std::function<RunRecord()>& record, int64_t best_step) {
  const bool is_saved = step == 0 || last_saved_step_ == step;
  if (!comm_.broadcast(!is_saved, 0, {"checkpoint"})) return;
  saves_before_stop_ = true;
  save(record(), best_step);
  finish_checkpoint(step);
  if (is_root() && last_saved_step_ != step) fail(ExitCode::kIoError, "{}", checkpoint_error_);
}

void RunFiles::write_model(int64_t step, const std::function<std::string()>& trainer_state) {
  mark_phase(comm_, RunPhase::kWritingModel, step + 1);
  const NetworkMeterPause pause(meter_);
  try {
    model_writer_.write(output_ ? &*output_ : nullptr, spec_.output_dir,
                        [&] { write_text_file(output_->path() / kTrainerStateName, trainer_state()); });
  } catch (const Error& error) {
    if (!is_root() || error.code() != ExitCode::kIoError) throw;
    fail(ExitCode::kIoError, "{}; {}", error.what(), way_to_model(step));
  }
}

std::string RunFiles::way_to_model(int64_t step) const {
  if (last_saved_step_ <= 0) return "no checkpoint was saved (save_strategy), so its training is lost";
  return fmt::format("{} {}: the same command with --resume_from_checkpoint auto {} once this works",
                     checkpoint_name(last_saved_step_),
                     last_saved_step_ == step ? "has the whole run" : "is the last that was saved",
                     last_saved_step_ == step ? "writes the model" : "trains the steps after it again");
}

double RunFiles::time_to_write_s(double bytes) const {
  // Before the first checkpoint has been written: a network disk.
  constexpr double kAssumedBytesPerSecond = 100e6;
  const double measured = saver_.bytes_per_second();
  return bytes / (measured > 0 ? measured : kAssumedBytesPerSecond);
}

double RunFiles::write_estimate_s() const {
  // Time for everything that is not written piece by piece: syncing, the manifest, leaving.
  constexpr double kCommitSeconds = 1;
  return kCommitSeconds + checkpoint_estimate_s() * (saver_.is_writing() ? 2 : 1);
}

std::optional<CheckpointUse> RunFiles::take_written() { return std::exchange(written_, std::nullopt); }

std::filesystem::path RunFiles::last_checkpoint() const {
  if (!output_ || last_saved_step_ <= 0) return {};
  return output_->checkpoint_folder(last_saved_step_);
}

}  // namespace tessera
