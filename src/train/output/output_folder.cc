#include "train/output/output_folder.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "checkpoint/checkpoint_files.h"
#include "formats/huggingface/lora_config.h"
#include "formats/json.h"
#include "io/file.h"
#include "weights/model_folder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Runs a filesystem operation; a failure is an Error(kIoError) that says what was attempted.
template <typename Operation>
void try_io(const std::string& what, const Operation& operation) {
  std::error_code error;
  operation(error);
  if (error) fail(ExitCode::kIoError, "cannot {}: {}", what, error.message());
}

void move_path(const fs::path& from, const fs::path& to) {
  try_io(fmt::format("move {} to {}", from.string(), to.string()),
         [&](std::error_code& error) { fs::rename(from, to, error); });
}

void remove_tree(const fs::path& path) {
  try_io(fmt::format("remove {}", path.string()),
         [&](std::error_code& error) { fs::remove_all(path, error); });
}

std::vector<fs::path> names_in(const fs::path& folder) {
  std::vector<fs::path> names;
  try_io(fmt::format("list {}", folder.string()), [&](std::error_code& error) {
    for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
      names.push_back(entry->path().filename());
    }
  });
  std::sort(names.begin(), names.end());
  return names;
}

// Whether it is ours rather than another program's folder with such a name.
bool is_own_checkpoint(const fs::path& folder) {
  std::error_code ignored;
  return fs::exists(folder / kManifestName, ignored);
}

bool is_report_name(const std::string& name) {
  return name == "metrics.jsonl" || name == "events.jsonl" || name == "memory.json" ||
         name == "csv_monitor" || name == "mlflow.json" || name == kTrainerStateName ||
         name == "training_args.json" || name == kLatestName;
}

// Files that change the meaning of a model folder: Transformers takes a model beside an adapter_config.json
// for an adapter.
bool is_model_name(const std::string& name) {
  return name == "model.safetensors.index.json" || name == kAdapterFileName || name == kAdapterConfigName ||
         name == "config.json" || name == kGenerationConfigName || name == "chat_template.jinja" ||
         (name.starts_with("model") && name.ends_with(".safetensors"));
}

// `relative` is a path within an output folder. True for files directly in it, and for anything in its
// checkpoints and unfinished folders: these are moved, or deleted to keep save_total_limit.
bool is_moved_aside(const fs::path& output, const fs::path& relative) {
  if (relative.empty()) return false;
  const std::string first = relative.begin()->string();
  std::error_code ignored;
  const bool is_file = !relative.has_parent_path() && fs::is_regular_file(output / relative, ignored);
  return first == "." || is_file || parse_checkpoint_name(first) || first.starts_with(kUnfinishedPrefix);
}

// An unfinished folder that is deleted unless it was moved to its final place.
class StagingFolder {
 public:
  explicit StagingFolder(fs::path path) : path_(std::move(path)) {
    remove_tree(path_);
    create_folder(path_);
  }
  ~StagingFolder() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  StagingFolder(const StagingFolder&) = delete;
  StagingFolder& operator=(const StagingFolder&) = delete;
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

}  // namespace

void check_can_write_in(const fs::path& folder) {
  std::error_code ignored;
  const fs::path nearest = nearest_existing(folder);
  const int error = !fs::is_directory(nearest, ignored)                ? ENOTDIR
                    : access(nearest.c_str(), W_OK | X_OK | R_OK) != 0 ? errno
                                                                       : 0;
  if (error != 0) {
    fail_errno(ExitCode::kIoError, error,
               fmt::format("output_dir {}: cannot write in {}", folder.string(), nearest.string()));
  }
  if (fs::exists(folder / kManifestName, ignored)) {
    fail(ExitCode::kBadConfig,
         "output_dir {}: is itself a checkpoint, which a run into it would destroy; choose another folder, "
         "or its parent folder with --resume_from_checkpoint",
         folder.string());
  }
}

void check_spares_model(const fs::path& folder, const fs::path& model) {
  std::error_code ignored;
  const fs::path output = fs::canonical(folder, ignored);
  if (output.empty()) return;
  std::vector<fs::path> parts = {model};
  for (fs::directory_iterator entry(model, ignored), end; !ignored && entry != end;
       entry.increment(ignored)) {
    parts.push_back(entry->path());
  }
  for (const fs::path& part : parts) {
    const fs::path relative = fs::canonical(part, ignored).lexically_relative(output);
    if (!is_moved_aside(output, relative)) continue;
    fail(ExitCode::kBadConfig,
         "output_dir {}: the run would move its own base model ({}) aside; choose another folder",
         folder.string(), part.string());
  }
}

std::optional<int64_t> finished_step(const fs::path& output_dir) {
  const fs::path path = output_dir / kTrainerStateName;
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return std::nullopt;
  const Json state = Json::parse(read_text_file(path), nullptr, /*allow_exceptions=*/false);
  if (!state.is_object()) return std::nullopt;
  const Json step = state.value("global_step", Json());
  return step.is_number_integer() ? std::optional(step.get<int64_t>()) : std::nullopt;
}

void OutputFolder::set_aside(const fs::path& name) {
  if (previous_folder_.empty()) previous_folder_ = make_previous_folder(folder_);
  move_path(folder_ / name, previous_folder_ / name);
}

void OutputFolder::set_aside_former_run() {
  for (const fs::path& name : names_in(folder_)) {
    if (name.string().starts_with(kUnfinishedPrefix)) remove_tree(folder_ / name);
    if (is_report_name(name) || parse_checkpoint_name(name.native())) set_aside(name);
  }
}

void OutputFolder::keep_former_run(int64_t step) {
  std::vector<int64_t> kept;
  for (const fs::path& name : names_in(folder_)) {
    if (name.string().starts_with(kUnfinishedPrefix)) remove_tree(folder_ / name);
    const std::optional<int64_t> of = parse_checkpoint_name(name.native());
    if (!of) continue;
    if (*of > step) {
      set_aside(name);
      log_warning("{} is newer than the checkpoint the run resumes from: it was moved to {}",
                  (folder_ / name).string(), previous_folder_.string());
    } else if (is_own_checkpoint(folder_ / name)) {
      kept.push_back(*of);
    }
  }
  if (finished_step(folder_).value_or(step) > step) set_aside(kTrainerStateName);
  std::sort(kept.begin(), kept.end());
  for (const int64_t of : kept) checkpoints_.push_back(checkpoint_folder(of));
  point_latest();
}

// The checkpoint it names may have been set aside.
void OutputFolder::point_latest() {
  const fs::path latest = folder_ / kLatestName;
  std::error_code ignored;
  if (!fs::is_regular_file(latest, ignored)) return;  // absent, or someone's link to a folder
  if (checkpoints_.empty()) {
    try_io(fmt::format("remove {}", latest.string()),
           [&](std::error_code& failure) { fs::remove(latest, failure); });
    return;
  }
  const std::string newest = checkpoints_.back().filename().native() + "\n";
  if (read_text_file(latest) != newest) write_text_file(latest, newest);
}

fs::path OutputFolder::checkpoint_folder(int64_t step) const { return folder_ / checkpoint_name(step); }

// Renames before deleting, so that a half-deleted folder is not taken for a checkpoint.
void OutputFolder::remove_checkpoint(const fs::path& folder) {
  const fs::path condemned =
      folder_ / fmt::format("{}{}-to-delete", kUnfinishedPrefix, folder.filename().string());
  try {
    move_path(folder, condemned);
    remove_tree(condemned);
  } catch (const Error& error) {
    log_warning("save_total_limit: {}", error.what());
  }
}

void OutputFolder::checkpoint_written(int64_t step, std::optional<int64_t> total_limit, int64_t best_step) {
  const fs::path newest = checkpoint_folder(step), best = checkpoint_folder(best_step);
  std::erase(checkpoints_, newest);
  checkpoints_.push_back(newest);
  if (!total_limit) return;
  for (auto old = checkpoints_.begin();
       old != checkpoints_.end() && std::ssize(checkpoints_) > *total_limit;) {
    if (*old == newest || *old == best) {
      ++old;
      continue;
    }
    remove_checkpoint(*old);
    old = checkpoints_.erase(old);
  }
}

void OutputFolder::keep_only(int64_t best_step) {
  const fs::path best = checkpoint_folder(best_step);
  if (std::ranges::find(checkpoints_, best) == checkpoints_.end()) return;  // in the folder resumed from
  for (const fs::path& checkpoint : checkpoints_) {
    if (checkpoint != best) remove_checkpoint(checkpoint);
  }
  std::erase_if(checkpoints_, [&best](const fs::path& checkpoint) { return checkpoint != best; });
  point_latest();
}

fs::path OutputFolder::unfinished_model(const fs::path& folder) {
  return folder / fmt::format("{}model", kUnfinishedPrefix);
}

void OutputFolder::replace_model(const std::function<void(const fs::path& folder)>& write) {
  const StagingFolder staging(unfinished_model(folder_));
  write(staging.path());
  const std::vector<fs::path> fresh = names_in(staging.path());
  for (const fs::path& name : names_in(folder_)) {
    const bool is_replaced = std::find(fresh.begin(), fresh.end(), name) != fresh.end();
    if (is_replaced || is_model_name(name)) set_aside(name);
  }
  for (const fs::path& name : fresh) move_path(staging.path() / name, folder_ / name);
  fsync_folder(folder_);
}

}  // namespace tessera
