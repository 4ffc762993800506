// The output_dir of a run: nothing that was there before is lost, and whatever appears in it is complete.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>

#include "train/output/folder_lock.h"

namespace tessera {

// Error(kIoError) if the folder could not be created or written to later, as far as that can be determined
// without changing anything; kBadConfig if it is a checkpoint. Lets a run fail before it reads data and
// weights.
void check_can_write_in(const std::filesystem::path& folder);

// Error(kBadConfig) if a run into `folder` would move aside or delete any part of the model it starts from:
// the same folder under any path, a checkpoint in it, or files in it that the model's folder links to.
void check_spares_model(const std::filesystem::path& folder, const std::filesystem::path& model);

// The step after which the model in an output folder was written, according to trainer_state.json; nullopt if
// that cannot be read.
std::optional<int64_t> finished_step(const std::filesystem::path& output_dir);

class OutputFolder {
 public:
  // Creates and locks the folder, see FolderLock.
  explicit OutputFolder(const std::filesystem::path& folder) : lock_(folder), folder_(folder) {}

  const std::filesystem::path& path() const { return folder_; }

  // Moves an earlier run's reports and checkpoints to previous-N, N counting up, so that this run starts
  // clean; removes unfinished folders of a killed run. The earlier run's model stays until replace_model().
  void set_aside_former_run();
  // Alternative: continues the earlier run from step `step`. Its later checkpoints, and the files that say it
  // ended at a later step, are moved to previous-N.
  void keep_former_run(int64_t step);
  // Where files of an earlier run went; empty = nothing was moved so far.
  const std::filesystem::path& previous_folder() const { return previous_folder_; }

  std::filesystem::path checkpoint_folder(int64_t step) const;
  // Records a new checkpoint and deletes the oldest beyond `total_limit`, but never the one of `best_step`
  // (0 = none), nor a folder that is not a checkpoint of this program; a failed deletion is a warning.
  void checkpoint_written(int64_t step, std::optional<int64_t> total_limit, int64_t best_step = 0);
  // Deletes every checkpoint of this run except that of `best_step`, as Hugging Face's Trainer does at the
  // end of a run with save_total_limit 1.
  void keep_only(int64_t best_step);
  // Where replace_model() keeps the unfinished model of the output folder `folder`.
  static std::filesystem::path unfinished_model(const std::filesystem::path& folder);
  // `write` fills an unfinished folder; its files are then moved into the output folder. Files of an earlier
  // model are moved to previous-N.
  void replace_model(const std::function<void(const std::filesystem::path& folder)>& write);

 private:
  void set_aside(const std::filesystem::path& name);
  void remove_checkpoint(const std::filesystem::path& folder);
  void point_latest();

  FolderLock lock_;
  std::filesystem::path folder_;
  std::filesystem::path previous_folder_;
  std::deque<std::filesystem::path> checkpoints_;  // of this run, oldest first
};

}  // namespace tessera
