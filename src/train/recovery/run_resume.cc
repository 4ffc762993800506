#include "train/recovery/run_resume.h"

#include <algorithm>
#include <limits>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "checkpoint/checkpoint_files.h"
#include "comm/first_failure.h"
#include "io/file.h"
#include "settings/derived.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

const OpLabel kResumeLabel = {"resume"};

bool same_folder(const fs::path& a, const fs::path& b) {
  std::error_code ignored;
  return fs::equivalent(a, b, ignored);
}

// For an output folder without a usable checkpoint: why its newest one cannot be used. A folder of that name
// without the state of a run belongs to another program and does not count.
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

std::string RunResume::Point::origin() const {
  if (reader) return reader->folder().string();
  return fmt::format("the state of step {} in memory", held->id.step);
}

RunResume::RunResume(const RunSpec& spec, Communicator& comm, PeerSnapshots* snapshots)
    : spec_(spec), comm_(comm), snapshots_(snapshots) {
  if (!spec.resume.resumes()) return;
  const bool by_name = spec.resume.by_name();
  // A restart continues from the states that earlier starts wrote after the requested checkpoint.
  const bool looks = !by_name || (spec.launch.is_restart && !spec.launch.id.empty());
  const std::optional<fs::path> newest =
      looks ? newest_checkpoint(std::numeric_limits<int64_t>::max()) : std::nullopt;
  if (choose_memory(newest)) return;
  if (newest) {
    point_ = open(*newest);
  } else if (by_name) {
    point_ = open(spec.resume.folder);
  } else if (spec.resume.from == ResumeSpec::From::kNewest) {
    fail(ExitCode::kNoInput,
         "resume_from_checkpoint true: {} has no checkpoint that can be used; auto starts afresh "
         "where there is none",
         spec.output_dir);
  } else if (!spec.resumes_own_launch_only()) {
    refuse_unusable_checkpoints();
  }
}

RunResume::Point RunResume::open(const fs::path& folder) {
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

// Rank 0 looks; the others take the same one, under their own name of output_dir.
std::optional<fs::path> RunResume::newest_checkpoint(int64_t before) const {
  int64_t step = -1;
  std::error_code ignored;
  if (comm_.world().rank == 0 && fs::is_directory(spec_.output_dir, ignored)) {
    std::optional<CheckpointReader> newest;
    do {
      newest = open_newest_checkpoint(spec_.output_dir, newest ? newest->step() : before);
    } while (newest && spec_.resumes_own_launch_only() && !is_of_this_launch(*newest));
    if (newest) step = newest->step();
  }
  step = comm_.broadcast(step, 0, kResumeLabel);
  if (step < 0) return std::nullopt;
  return fs::path(spec_.output_dir) / checkpoint_name(step);
}

bool RunResume::is_of_this_launch(const CheckpointReader& reader) const {
  const Json record = Json::parse(reader.run_json(), nullptr, /*allow_exceptions=*/false);
  return record.is_object() && record.value("launch_id", Json()) == spec_.launch.id;
}

// State that an earlier start of this job left in memory continues whatever that start began with.
bool RunResume::choose_memory(const std::optional<fs::path>& newest) {
  if (snapshots_ == nullptr || comm_.world().restart_count == 0) return false;
  const bool reports = comm_.world().rank == 0;
  const HeldSearch search = snapshots_->find();
  if (!search.found) {
    if (reports) log_warning("no state in memory is whole: {}; what is on disk counts", search.problem);
    return false;
  }
  const int64_t step = search.found->id.step;
  const int64_t saved = newest ? parse_checkpoint_name(newest->filename().native()).value_or(-1) : -1;
  if (saved > step) {
    if (reports) log_info("{} is newer than step {} in memory", newest->string(), step);
    return false;
  }
  if (reports && !search.problem.empty()) log_info("in memory, {}", search.problem);
  const std::string origin = fmt::format("step {} in memory", step);
  const HeldTexts texts = snapshots_->texts(*search.found);
  point_ = Point{{},
                 search.found,
                 parse_training_record(texts.run, origin),
                 parse_log_history(texts.log_history, origin)};
  last_saved_step_ = saved;
  return true;
}

void RunResume::refuse_unusable_checkpoints() const {
  const bool looks = comm_.world().rank == 0;
  const ExitCode code =
      comm_.broadcast(looks ? code_of_unusable(spec_.output_dir) : ExitCode::kDone, 0, kResumeLabel);
  if (code == ExitCode::kDone) return;
  fail(code,
       "resume_from_checkpoint auto: {} has checkpoints, but none that can be used, see `tessera checkpoint "
       "verify`; repair them, or move them away to start afresh",
       spec_.output_dir);
}

bool RunResume::is_in_place() const {
  return point_->held || same_folder(point_->reader->folder().parent_path(), spec_.output_dir);
}

fs::path RunResume::checkpoint_parent() const {
  return is_in_place() ? fs::path(spec_.output_dir) : point_->reader->folder().parent_path();
}

fs::path RunResume::checkpoint_folder(int64_t step) const {
  if (point_->reader && point_->reader->step() == step) return point_->reader->folder();
  return checkpoint_parent() / checkpoint_name(step);
}

int64_t RunResume::last_saved_step() const {
  return point_->reader && is_in_place() ? point_->record.progress.step : last_saved_step_;
}

BatchPlanOptions RunResume::continue_batches(const BatchPlanOptions& options, TrainingRecord* now) const {
  const TrainingRecord& then = point_->record;
  const std::vector<Difference> forbidden = forbidden_differences(then, *now);
  if (!forbidden.empty()) {
    fail(ExitCode::kBadConfig,
         "{} belongs to a run with settings that cannot change on resume (then -> now): {}; resume with the "
         "old ones, or start afresh",
         point_->origin(), differences_text(forbidden));
  }
  const BatchPlanOptions resumed = resumed_batch_options(then.data, options);
  const int64_t rows = global_batch_rows(resumed);
  now->data = then.data;
  if (rows != global_batch_rows(options) && comm_.world().rank == 0) {
    log_info("a step keeps the {} that it had on {}: gradient_accumulation_steps is {} on {}",
             count_of(rows, "row"), count_of(then.data.world_size, "rank"), micro_batches_of_rank(resumed),
             options.world_size);
  }
  return resumed;
}

void RunResume::check_base(const TrainingRecord& now) const {
  const TrainingRecord& then = point_->record;
  if (!then.base || *then.base == *now.base) return;
  const std::string began_with = printable(then.arguments.value("model", Json("?")).dump(), 200);
  if (same_model(*then.base, *now.base)) {
    if (comm_.world().rank == 0)
      log_warning("the weights of {} are rounded differently from those of {}, with which the run began",
                  spec_.model.folder, began_with);
    return;
  }
  fail(ExitCode::kBadConfig,
       "{} has adapters of another model: the weights of {} are not those of {}, with which the run began; "
       "resume with that model, or train new adapters in another output_dir",
       point_->origin(), spec_.model.folder, began_with);
}

std::optional<fs::path> RunResume::older_checkpoint() const {
  const fs::path asked_for = spec_.resume.folder;
  if (spec_.resume.by_name() && point_->reader->folder() == asked_for) return std::nullopt;
  const std::optional<fs::path> older = newest_checkpoint(point_->reader->step());
  return !older && spec_.resume.by_name() ? asked_for : older;
}

void RunResume::load(const TrainableModel& model, StoreState& state, ThreadPool& pool,
                     TrainObserver& observer) {
  const StateSink sink = [&](StateKind kind, int64_t begin, std::span<const float> values) {
    state.write(kind, begin, values);
  };
  while (!point_->held) {
    const fs::path folder = point_->reader->folder();
    const std::optional<Error> error = outside_error([&] {
      point_->reader->load(model.layout(), state.tensors(), state.kept(), sink, pool,
                           [&](const LoadProgress& progress) {
                             observer.on_loading(progress.fraction(), progress.bytes_per_second());
                           });
    });
    const std::optional<RankError> told = first_error(comm_, error, kResumeLabel);
    if (!told) {
      const std::string conversion = point_->reader->conversion_to(model.layout(), state.tensors());
      if (!conversion.empty() && comm_.world().rank == 0)
        log_warning("{} has the state of another optimizer, which is converted: {}", folder.string(),
                    conversion);
      report_left_out(state.tensors());
      break;
    }
    const std::optional<fs::path> older = older_checkpoint();
    if (!older) fail(told->code, "{}", told->message);
    log_warning("{}; {} is taken instead", told->message, older->string());
    const DataRecord rows = point_->record.data;
    point_ = open(*older);
    if (point_->record.data != rows) {
      fail(ExitCode::kBadConfig, "{} has its rows in another order than {}: resume from it by its name",
           older->string(), folder.string());
    }
  }
  if (point_->held) snapshots_->load(*point_->held, model.layout(), state.tensors(), state.kept(), sink);
  state.written();
}

void RunResume::report_left_out(StateTensors tensors) const {
  if (comm_.world().rank > 0) return;
  for (const StateTensor& tensor : kTensorsOfNoOptimizer) {
    const bool is_kept = std::ranges::find(tensors, tensor.name, &StateTensor::name) != tensors.end();
    if (is_kept || !point_->reader->has_state(tensor.name)) continue;
    log_info("{} of {} is left out: {} in this run", tensor.name, point_->reader->folder().string(),
             tensor.name == kOuterMomentum.name ? "nodes do not train on their own"
                                                : "gradients are not quantised");
  }
}

void RunResume::report(const TrainingRecord& now, TrainObserver& observer) const {
  const int64_t step = point_->record.progress.step;
  const std::string differences = differences_text(allowed_differences(point_->record, now));
  if (point_->held) {
    observer.on_resume_from_memory(point_->held->nodes(comm_.world().local_world_size), step, differences);
  } else {
    observer.on_resume(point_->reader->folder(), step, differences);
  }
}

}  // namespace tessera
