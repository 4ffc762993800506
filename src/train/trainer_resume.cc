// Going on from a checkpoint.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/checkpoint_files.h"
#include "formats/file.h"
#include "train/first_failure.h"
#include "train/trainer.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

const OpLabel kResumeLabel = {"resume"};

bool has_value(const LogEntry& entry, std::string_view name) {
  return std::ranges::any_of(entry.values, [name](const auto& value) { return value.first == name; });
}

bool same_folder(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return fs::equivalent(a, b, ignored);
}

// Of an output folder without a checkpoint that can be used: why its newest one cannot. A folder of that name
// without the state of a run is another program's, and none of a run.
ExitCode code_of_unusable(const fs::path& output_dir) {
  const std::vector<CheckpointEntry> entries = list_checkpoints(output_dir);
  for (auto entry = entries.rbegin(); entry != entries.rend(); ++entry) {
    std::error_code ignored;
    if (entry->problem.empty() || !fs::exists(entry->folder / kStateFolder, ignored)) continue;
    return entry->code == ExitCode::kIoError ? ExitCode::kIoError : ExitCode::kBadData;
  }
  return ExitCode::kDone;
}

}  // namespace

Trainer::ResumePoint Trainer::open_resume_point(const fs::path& folder) {
  CheckpointReader reader = CheckpointReader::open(folder);
  TrainingRecord record = parse_training_record(reader.run_json(), folder.string());
  if (record.progress.step != reader.step()) {
    fail(ExitCode::kBadData, "{}: field 'run.progress.step': expected {}, found {}", folder.string(),
         reader.step(), record.progress.step);
  }
  const fs::path state = folder / kTrainerStateName;
  std::vector<LogEntry> log_history = parse_log_history(read_text_file(state), state.string());
  return {std::move(reader), {}, std::move(record), std::move(log_history)};
}

std::string Trainer::ResumePoint::origin() const {
  if (reader) return reader->folder().string();
  return fmt::format("the state of step {} in memory", held->id.step);
}

// Rank 0 looks; the others take the same one, under their own name of output_dir.
std::optional<fs::path> Trainer::newest_checkpoint(int64_t before) {
  std::array<double, 1> chosen = {0};
  std::error_code ignored;
  if (is_root()) {
    std::optional<CheckpointReader> newest;
    if (fs::is_directory(args_.output_dir, ignored)) {
      do {
        newest = open_newest_checkpoint(args_.output_dir, newest ? newest->step() : before);
      } while (newest && args_.resumes_own_launch_only() && !is_of_this_launch(*newest));
    }
    chosen[0] = newest ? static_cast<double>(newest->step()) : -1;
  }
  comm_->all_reduce_sum(chosen, kResumeLabel);
  if (chosen[0] < 0) return std::nullopt;
  return fs::path(args_.output_dir) / checkpoint_name(static_cast<int64_t>(chosen[0]));
}

bool Trainer::is_of_this_launch(const CheckpointReader& reader) const {
  const Json record = Json::parse(reader.run_json(), nullptr, /*allow_exceptions=*/false);
  return record.is_object() && record.value("launch_id", Json()) == args_.launch_id;
}

void Trainer::choose_checkpoint() {
  if (!args_.resumes()) return;
  const bool by_name = args_.resumes_by_name();
  // Behind the one that was asked for, a restart has those that the starts before have written.
  const bool looks = !by_name || (args_.is_restart && !args_.launch_id.empty());
  const std::optional<fs::path> newest =
      looks ? newest_checkpoint(std::numeric_limits<int64_t>::max()) : std::nullopt;
  if (resume_from_memory(newest)) return;
  if (newest) {
    resume_ = open_resume_point(*newest);
  } else if (by_name) {
    resume_ = open_resume_point(args_.resume_from_checkpoint);
  } else if (args_.resume_from_checkpoint == "true") {
    fail(ExitCode::kNoInput,
         "resume_from_checkpoint true: {} has no checkpoint that can be used; auto starts afresh "
         "where there is none",
         args_.output_dir);
  } else if (!args_.resumes_own_launch_only()) {
    refuse_unusable_checkpoints();
  }
}

void Trainer::refuse_unusable_checkpoints() {
  std::array<double, 1> code = {0};
  if (is_root()) code[0] = static_cast<double>(code_of_unusable(args_.output_dir));
  comm_->all_reduce_sum(code, kResumeLabel);
  if (code[0] == 0) return;
  fail(static_cast<ExitCode>(std::lround(code[0])),
       "resume_from_checkpoint auto: {} has checkpoints, but none that can be used, see `tessera checkpoint "
       "verify`; repair them, or move them away to start afresh",
       args_.output_dir);
}

std::optional<fs::path> Trainer::older_checkpoint() {
  const fs::path asked_for = args_.resume_from_checkpoint;
  if (args_.resumes_by_name() && resume_->reader->folder() == asked_for) return std::nullopt;
  const std::optional<fs::path> older = newest_checkpoint(resume_->reader->step());
  return !older && args_.resumes_by_name() ? asked_for : older;
}

BatchPlanOptions Trainer::go_on_with_batches(const BatchPlanOptions& options) {
  const TrainingRecord& then = resume_->record;
  const std::vector<Difference> forbidden = forbidden_differences(then, record_);
  if (!forbidden.empty()) {
    fail(ExitCode::kBadConfig,
         "{} is of a run with other settings, which cannot change on the way (then -> now): {}; resume with "
         "those of then, or start afresh",
         resume_->origin(), differences_text(forbidden));
  }
  const BatchPlanOptions resumed = resumed_batch_options(then.data, options);
  const int64_t rows = global_batch_rows(resumed);
  record_.data = then.data;
  if (resumed.cut) {
    args_.gradient_accumulation_steps =
        accumulation_of_global_batch(rows, args_.per_device_train_batch_size, world().world_size);
  }
  if (rows != global_batch_rows(options) && is_root()) {
    log_info("a step keeps the {} that it had on {}: gradient_accumulation_steps is {} on {}",
             count_of(rows, "row"), count_of(then.data.world_size, "rank"), args_.gradient_accumulation_steps,
             world().world_size);
  }
  return resumed;
}

// A checkpoint that turns out to be damaged as it is read gives way to the one before it, unless it was asked
// for by name.
void Trainer::load_checkpoint() {
  const StateSink sink = [this](StateKind kind, int64_t begin, std::span<const float> values) {
    parameters_->write_state(kind, begin, values);
  };
  if (resume_->held) {
    snapshots_->load(*resume_->held, model_->layout(), parameters_->kept(), sink);
    parameters_->state_written();
    return;
  }
  for (;;) {
    const fs::path folder = resume_->reader->folder();
    const std::optional<Error> error = outside_error([&] {
      resume_->reader->load(model_->layout(), parameters_->kept(), sink, *pool_,
                            [this](const LoadProgress& progress) {
                              observer_->on_loading(progress.fraction(), progress.bytes_per_second());
                            });
    });
    const std::optional<RankError> told = first_error(*comm_, error, kResumeLabel);
    if (!told) break;
    const std::optional<fs::path> older = older_checkpoint();
    if (!older) fail(told->code, "{}", told->message);
    log_warning("{}; {} is taken instead", told->message, older->string());
    const DataRecord rows = resume_->record.data;
    resume_ = open_resume_point(*older);
    if (resume_->record.data != rows) {
      fail(ExitCode::kBadConfig, "{} has its rows in another order than {}: resume from it by its name",
           older->string(), folder.string());
    }
  }
  parameters_->state_written();
}

void Trainer::restore_progress() {
  const TrainingRecord& then = resume_->record;
  const ProgressRecord& progress = then.progress;
  state_.global_step = progress.step;
  state_.epoch = progress.epoch;
  state_.num_input_tokens_seen = progress.num_input_tokens_seen;
  state_.total_flos = progress.total_flos;
  state_.log_history = resume_->log_history;
  total_loss_ = progress.total_loss;
  loss_since_log_ = progress.loss_since_log;
  losses_since_log_ = progress.losses_since_log;
  num_updates_ = progress.num_updates;
  num_skipped_in_a_row_ = progress.num_skipped_in_a_row;
  loss_spikes_.restore(then.loss_spikes);
  first_step_ = progress.step;
  first_tokens_seen_ = progress.num_input_tokens_seen;
  if (resume_->reader && resumes_in_place()) last_saved_step_ = progress.step;
  if (then.plateau) schedule_->restore(*then.plateau);
  if (is_root() && schedule_->plateau() && schedule_->learning_rate(progress.step) != args_.learning_rate) {
    log_info("lr_scheduler_type {} goes on with a learning rate of {}", args_.lr_scheduler_type,
             schedule_->learning_rate(progress.step));
  }
  const std::string differences = differences_text(allowed_differences(then, record_));
  if (resume_->held) {
    observer_->on_resume_from_memory(resume_->held->nodes(world().local_world_size), progress.step,
                                     differences);
  } else {
    observer_->on_resume(resume_->reader->folder(), progress.step, differences);
  }
}

bool Trainer::resumes_in_place() const {
  if (!resume_) return false;
  return resume_->held || same_folder(resume_->reader->folder().parent_path(), args_.output_dir);
}

// A signal may have cut short the evaluation that comes before the checkpoint of its step.
bool Trainer::begins_with_evaluation() const {
  if (!resume_) return args_.eval_on_start;
  if (!actions_->after(state_.global_step).evaluate) return false;
  return std::ranges::none_of(state_.log_history, [this](const LogEntry& entry) {
    return entry.step == state_.global_step && has_value(entry, "eval_loss");
  });
}

// The finished model is there, too.
bool Trainer::is_finished_already() {
  if (!resume_ || state_.global_step < state_.max_steps) return false;
  const bool is_there =
      is_root() && resumes_in_place() && finished_step(args_.output_dir) == state_.global_step;
  std::array<double, 1> is_written = {is_there ? 1.0 : 0.0};
  comm_->all_reduce_sum(is_written, kResumeLabel);
  return is_written[0] > 0;
}

}  // namespace tessera
