#include "train/best_checkpoint.h"

#include <algorithm>
#include <optional>
#include <span>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint_files.h"
#include "checkpoint/checkpoint_reader.h"
#include "comm/first_failure.h"
#include "io/absolute_path.h"
#include "report/run_phase.h"

namespace tessera {
namespace {

bool has_checkpoint(const RunSetup& setup, int64_t step) {
  std::error_code ignored;
  return std::filesystem::exists(checkpoint_folder(setup, step) / kManifestName, ignored);
}

}  // namespace

std::filesystem::path checkpoint_folder(const RunSetup& setup, int64_t step) {
  const RunResume& resume = *setup.resume;
  const bool is_of_this_start = !resume || step > resume.record().progress.step;
  const std::filesystem::path own = setup.spec.output_dir;
  if (is_of_this_start) return own / checkpoint_name(step);
  // The start before may have resumed from another folder, too.
  const BestModel& best = resume.record().progress.best;
  if (step == best.checkpoint_step && !best.checkpoint_folder.empty()) return best.checkpoint_folder;
  return resume.checkpoint_folder(step);
}

std::string folder_elsewhere(const RunSetup& setup, int64_t step) {
  const std::filesystem::path folder = checkpoint_folder(setup, step);
  if (step == 0 || folder == std::filesystem::path(setup.spec.output_dir) / checkpoint_name(step)) return "";
  return absolute_path(folder).string();
}

std::optional<double> BestCheckpoint::value_at(int64_t step) const {
  for (auto entry = log_history_.rbegin(); entry != log_history_.rend() && entry->step >= step; ++entry) {
    const std::optional<double> value = value_of(*entry, rule_.metric());
    if (entry->step == step && value) return value;
  }
  return std::nullopt;
}

// Looks at the best of the evaluations that beat the checkpoint so far first, so that it seldom asks the file
// system twice.
void BestCheckpoint::find(BestModel* best) const {
  if (best->step == 0) return;
  int64_t found = best->checkpoint_step;
  if (setup_.is_root()) {
    const std::optional<double> so_far = found > 0 ? value_at(found) : std::nullopt;
    std::vector<std::pair<double, int64_t>> better;
    for (const LogEntry& entry : log_history_) {
      const std::optional<double> value = value_of(entry, rule_.metric());
      if (!value || entry.step < first_step_ || entry.step <= found) continue;
      if (rule_.is_better(*value, so_far)) better.emplace_back(*value, entry.step);
    }
    std::ranges::stable_sort(
        better, [this](const auto& a, const auto& b) { return rule_.is_better(a.first, b.first); });
    const auto saved =
        std::ranges::find_if(better, [this](const auto& of) { return has_checkpoint(setup_, of.second); });
    if (saved != better.end()) found = saved->second;
  }
  best->checkpoint_step = setup_.comm.broadcast(found, 0, {"best checkpoint"});
}

int64_t BestCheckpoint::spared_step(const Progress& progress) const {
  const BestModel& best = progress.best;
  const std::optional<double> value = value_at(progress.step);
  if (best.step == 0 || !value || progress.step < first_step_) return best.checkpoint_step;
  const std::optional<double> so_far =
      best.checkpoint_step > 0 ? value_at(best.checkpoint_step) : std::nullopt;
  return rule_.is_better(*value, so_far) ? progress.step : best.checkpoint_step;
}

void BestCheckpoint::load(const Progress& progress) const {
  RunSetup& setup = setup_;
  const BestModel& best = progress.best;
  if (best.checkpoint_step == 0) {
    if (setup.is_root()) {
      log_warning(
          "load_best_model_at_end: no evaluation has a checkpoint; the finished model is that of step {}",
          progress.step);
    }
    return;
  }
  const std::filesystem::path folder = checkpoint_folder(setup, best.checkpoint_step);
  const bool is_there = setup.is_root() && has_checkpoint(setup, best.checkpoint_step);
  if (!setup.comm.broadcast(is_there, 0, {"best checkpoint"})) {
    if (setup.is_root()) {
      log_warning("load_best_model_at_end: {}: no such checkpoint; the finished model is that of step {}",
                  folder.string(), progress.step);
    }
    return;
  }
  if (setup.is_root()) {
    log_info(
        "the finished model is the best, {} ({} {}){}", folder.string(), best.metric,
        value_at(best.checkpoint_step).value_or(*best.value),
        best.step == best.checkpoint_step
            ? ""
            : fmt::format("; that of step {} was better, {}, but has no checkpoint", best.step, *best.value));
  }
  if (best.checkpoint_step == progress.step) return;
  mark_phase(setup.comm, RunPhase::kLoadingBestModel, progress.step + 1);
  const PatientScope patience(setup.comm);
  StoreState& state = setup.parameters->state();
  const std::optional<Error> error = outside_error([&] {
    CheckpointReader::open(folder).load(
        setup.model->layout(), state.tensors(), state.kept(),
        [&state](StateKind kind, int64_t begin, std::span<const float> values) {
          state.write(kind, begin, values);
        },
        setup.pool);
  });
  if (const auto told = first_error(setup.comm, error, {"best model"})) {
    fail(told->code, "load_best_model_at_end: {}", told->message);
  }
  state.written();
}

}  // namespace tessera
