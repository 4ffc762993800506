// Writes checkpoint-<step>: every rank writes what it owns into files of one folder, in the background, while
// training goes on; nothing is gathered. docs/checkpoint-format.md describes the folder.
//
// The order of calls, on all ranks:
//   rank 0:     create_checkpoint()       makes the unfinished folder and its files
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

#include "checkpoint/model_folder.h"
#include "checkpoint/run_state.h"
#include "model/parameters.h"

namespace tessera {

// What is the same on all ranks.
struct CheckpointPlan {
  std::filesystem::path folder;  // as it is called when complete: output_dir/checkpoint-<step>
  const ModelConfig* config;
  const ParameterLayout* layout;
  ExportOptions export_options;
  int rank = 0;
  int world_size = 1;

  // Beside `folder`, on the same file system: output_dir/.unfinished-checkpoint-<step>.
  std::filesystem::path unfinished_folder() const;
};

// Makes the unfinished folder, in place of one that was left there: model files with headers and full size.
// Quick; rank 0's writer adds config.json and the tokenizer's files. Error(kIoError).
void create_checkpoint(const CheckpointPlan& plan);

struct WriteOptions {
  // Memory for state that changes before it is written; 0: before_change() waits for the disk instead.
  int64_t snapshot_bytes = 0;
  // Of this rank; 0 = no limit. Not while before_change() or wait() wait.
  int64_t max_bytes_per_second = 0;
};

struct WriteReport {
  int64_t bytes = 0;
  double write_s = 0;  // from the first byte to the last sync
  double stall_s = 0;  // that before_change() took
};

// This rank's share. A failed write or sync is final: nothing is tried twice.
class CheckpointWriter {
 public:
  // `owned` ascend without overlap; those of all ranks together are the whole array. Starts a thread that
  // reads `source` from the lowest element to the highest, what before_change() waits for first, and writes
  // it to the files, in pieces of at most 2^18 elements. `plan` is not used after the constructor, `pool` in
  // before_change() only.
  CheckpointWriter(const CheckpointPlan& plan, std::vector<ElementRange> owned, StateSource source,
                   const WriteOptions& options, ThreadPool& pool);
  // Abandons what is not written.
  ~CheckpointWriter();

  // These elements are about to change: returns when all of them, and those of the pieces they lie in, were
  // read, by the writer or, as far as there is memory for it, by the caller's threads just now. Does nothing
  // once the write has failed. One thread calls at a time.
  void before_change(ElementRange elements);

  // Written and synced, or failed.
  bool finished() const;
  // Until finished(). Error(kIoError) that names file and cause when it failed, and kNumerics when a value
  // does not fit the type of the model's files.
  void wait();
  WriteReport report() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// What the program needs to go on, beside weights and optimizer; one JSON object, of train's making.
struct RunRecord {
  int64_t step = 0;
  std::string run_json;            // goes into the manifest as "run"
  std::string trainer_state_json;  // trainer_state.json
  std::string training_args_json;  // training_args.json
};

// Writes the manifest over what all ranks have written, opens it as a reader would, syncs files and folders,
// gives the folder its name and makes `latest` point to it. One that had this name is moved to previous-N.
// Error(kIoError): the unfinished folder is then removed, older checkpoints stay as they are.
void commit_checkpoint(const CheckpointPlan& plan, const RunRecord& record);
// Removes the unfinished folder.
void abandon_checkpoint(const CheckpointPlan& plan) noexcept;

}  // namespace tessera
