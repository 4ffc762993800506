#include "train/evaluation/best_checkpoint.h"

#include <optional>
#include <span>
#include <system_error>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/checkpoint_reader.h"
#include "comm/first_failure.h"
#include "train/work_mark.h"

namespace tessera {
namespace {

// Collective.
bool has_checkpoint(const RunSetup& setup, int64_t step) {
  std::error_code ignored;
  const bool is_there =
      setup.is_root() && std::filesystem::exists(checkpoint_folder(setup, step) / kManifestName, ignored);
  return setup.comm.broadcast(is_there, 0, {"best checkpoint"});
}

}  // namespace

std::filesystem::path checkpoint_folder(const RunSetup& setup, int64_t step) {
  const RunResume& resume = *setup.resume;
  const bool is_of_this_start = !resume || step > resume.record().progress.step;
  const std::filesystem::path own = setup.args.output_dir;
  if (is_of_this_start) return own / checkpoint_name(step);
  // The start before may have resumed from another folder, too.
  const BestModel& best = resume.record().progress.best;
  if (step == best.checkpoint_step && !best.checkpoint_folder.empty()) return best.checkpoint_folder;
  return resume.checkpoint_folder(step);
}

std::string folder_elsewhere(const RunSetup& setup, int64_t step) {
  const std::filesystem::path folder = checkpoint_folder(setup, step);
  if (step == 0 || folder == std::filesystem::path(setup.args.output_dir) / checkpoint_name(step)) return "";
  return std::filesystem::absolute(folder).string();
}

void find_best_checkpoint(const RunSetup& setup, BestModel* best) {
  if (best->step != best->checkpoint_step && has_checkpoint(setup, best->step))
    best->checkpoint_step = best->step;
}

void load_best_model(RunSetup& setup, const Progress& progress) {
  const BestModel& best = progress.best;
  if (best.checkpoint_step == 0) {
    if (setup.is_root()) {
      log_warning(
          "load_best_model_at_end: no evaluation that was the best has a checkpoint; the finished "
          "model is that of step {}",
          progress.step);
    }
    return;
  }
  const std::filesystem::path folder = checkpoint_folder(setup, best.checkpoint_step);
  if (!has_checkpoint(setup, best.checkpoint_step)) {
    if (setup.is_root()) {
      log_warning("load_best_model_at_end: {}: no such checkpoint; the finished model is that of step {}",
                  folder.string(), progress.step);
    }
    return;
  }
  if (setup.is_root()) {
    log_info("the finished model is the best, {} ({} {})", folder.string(), best.metric, *best.value);
  }
  if (best.checkpoint_step == progress.step) return;
  mark_work(setup.comm, OtherWork::kLoadingBestModel, progress.step + 1);
  const PatientScope patience(setup.comm);
  ParameterState& parameters = *setup.parameters;
  const std::optional<Error> error = outside_error([&] {
    CheckpointReader::open(folder).load(
        setup.model->layout(), parameters.state_tensors(), parameters.kept(),
        [&parameters](StateKind kind, int64_t begin, std::span<const float> values) {
          parameters.write_state(kind, begin, values);
        },
        setup.pool);
  });
  if (const auto told = first_error(setup.comm, error, {"best model"})) {
    fail(told->code, "load_best_model_at_end: {}", told->message);
  }
  parameters.state_written();
}

}  // namespace tessera
