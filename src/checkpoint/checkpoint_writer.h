// Writes checkpoint-<step>: every rank writes what it owns to files in one folder, in the background while
// training continues; nothing is gathered. docs/checkpoint-format.md describes the folder.
//
// The order of calls, on all ranks:
//   rank 0:     create_checkpoint()       creates the unfinished folder and its files
//   every rank: CheckpointWriter writer   (after rank 0 has done so) starts to write
//               before_change()           before any of its state changes
//               finished() or wait()
//   rank 0:     commit_checkpoint()       once all ranks have finished: from here on it exists
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/run_state.h"
#include "model/parameters.h"
#include "weights/model_folder.h"

namespace tessera {

// Describes the checkpoint; the same on all ranks except for `rank`.
struct CheckpointPlan {
  std::filesystem::path folder;  // final name: output_dir/checkpoint-<step>
  const ModelConfig* config;
  const ParameterLayout* layout;
  StateTensors state_tensors;
  ExportOptions export_options;
  int rank = 0;
  int world_size = 1;

  // Beside `folder`, on the same file system: output_dir/.unfinished-checkpoint-<step>.
  std::filesystem::path unfinished_folder() const;
};

// Creates the unfinished folder, replacing any leftover one, with model files of full size and their headers.
// Quick; rank 0's writer adds config.json and the tokenizer's files. Error(kIoError).
void create_checkpoint(const CheckpointPlan& plan);

struct WriteOptions {
  // Memory for state that changes before it is written; 0: before_change() waits for the disk instead.
  int64_t snapshot_bytes = 0;
  // For this rank; 0 = no limit. Not applied while before_change() or wait() is waiting.
  int64_t max_bytes_per_second = 0;
};

struct WriteReport {
  int64_t bytes = 0;
  int64_t shared_bytes = 0;  // of these: not written, but shared with files of the run
  double write_s = 0;        // from the first byte to the last sync
  double stall_s = 0;        // time spent in before_change()
};

// Writes this rank's share. A failed write or sync is final and never retried.
class CheckpointWriter {
 public:
  // `owned` is ascending without overlap; all ranks together own the whole array. Starts a thread that reads
  // `source` in ascending order, except that pieces before_change() waits for come first, and writes it to
  // the files in pieces of at most 2^18 elements. Values that `stored` (if set) finds in files are shared
  // with these instead where the file system can. `plan` is not used after the constructor; `pool` is used
  // only in before_change().
  CheckpointWriter(const CheckpointPlan& plan, std::vector<ElementRange> owned, StateSource source,
                   const WriteOptions& options, ThreadPool& pool, StoredSource stored = {});
  // Abandons whatever is not written yet.
  ~CheckpointWriter();

  // Call before these elements change: returns once the pieces containing them have been read, by the writer
  // or, as far as snapshot memory allows, by the caller's threads. Does nothing once the write has failed.
  // One caller at a time.
  void before_change(ElementRange elements);

  // Whether everything is written and synced, or the write has failed.
  bool finished() const;
  // Waits until finished(). Error(kIoError) naming file and cause if it failed, kNumerics if a value does not
  // fit the type of the model files.
  void wait();
  WriteReport report() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Everything needed to resume besides weights and optimizer state; each text is a JSON object made by
// train.
struct RunRecord {
  int64_t step = 0;
  std::string run_json;            // goes into the manifest as "run"
  std::string trainer_state_json;  // trainer_state.json
  std::string training_args_json;  // training_args.json
};

// Writes the manifest of what all ranks have written, opens the checkpoint as a reader would, syncs files and
// folders, renames the folder to its final name and points `latest` to it. An older checkpoint of this name
// is moved to previous-N. On Error(kIoError) the unfinished folder is removed and older checkpoints are
// untouched.
void commit_checkpoint(const CheckpointPlan& plan, const RunRecord& record);
// Removes the unfinished folder.
void abandon_checkpoint(const CheckpointPlan& plan) noexcept;

}  // namespace tessera
