// output_dir of a run: nothing that was there before is lost, and what appears in it is complete.
#pragma once

#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <optional>

namespace tessera {

// Error(kIoError) when the folder could not be created or written in later, as far as that can be told
// without changing anything, kBadConfig when it is a checkpoint: a run finds it out before it reads data and
// weights.
void check_can_write_in(const std::filesystem::path& folder);

// Error(kBadConfig) when a run into `folder` would move aside or delete the model it starts from, or part of
// it: the same folder by whatever path, a checkpoint in it, files in it that the model's folder links to.
void check_spares_model(const std::filesystem::path& folder, const std::filesystem::path& model);

// The folder itself, or the first above it that is there.
std::filesystem::path nearest_existing(const std::filesystem::path& folder);

// The step at whose end the model in an output folder was written, by trainer_state.json; nothing where there
// is none that can be read.
std::optional<int64_t> finished_step(const std::filesystem::path& output_dir);

// Holds a lock on the folder while it lives: a second run in the same folder is refused.
class OutputFolder {
 public:
  // Creates the folder. kIoError when it cannot be written, kTryAgain when another run holds it.
  explicit OutputFolder(std::filesystem::path folder);
  ~OutputFolder();
  OutputFolder(const OutputFolder&) = delete;
  OutputFolder& operator=(const OutputFolder&) = delete;

  const std::filesystem::path& path() const { return folder_; }

  // Moves what a former run reported and its checkpoints to previous-N, N counting up, so that this run
  // starts clean; removes unfinished folders of a run that was killed. The model of the former run stays
  // until replace_model().
  void set_aside_former_run();
  // Instead: goes on with the former run from step `step`. Its later checkpoints are moved to previous-N, and
  // what says that it has ended at a later step.
  void keep_former_run(int64_t step);
  // Where files of a former run went; empty = nothing was moved so far.
  const std::filesystem::path& previous_folder() const { return previous_folder_; }

  std::filesystem::path checkpoint_folder(int64_t step) const;
  // There is a new one. The oldest beyond `total_limit` are deleted, never a folder that is no checkpoint of
  // this program; what cannot be is a warning.
  void checkpoint_written(int64_t step, std::optional<int64_t> total_limit);
  // Where replace_model() has the unfinished one of the output folder `folder`.
  static std::filesystem::path unfinished_model(const std::filesystem::path& folder);
  // `write` fills an unfinished folder; its files then take their places in the output folder. Files of a
  // former model are moved to previous-N.
  void replace_model(const std::function<void(const std::filesystem::path& folder)>& write);

 private:
  void set_aside(const std::filesystem::path& name);
  void point_latest();

  std::filesystem::path folder_;
  std::filesystem::path previous_folder_;
  std::deque<std::filesystem::path> checkpoints_;  // of this run, oldest first; by who writes them
  int lock_fd_ = -1;
};

}  // namespace tessera
