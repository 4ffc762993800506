// Bytes that a run will write to the file system of its output folder, known before it starts.
#pragma once

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "checkpoint/checkpoint_files.h"
#include "plan/memory_plan.h"

namespace tessera {

// Counts weights and optimizer state; configuration, tokenizer and reports are small in comparison.
struct DiskPlan {
  int64_t model_bytes = 0;       // the finished model; a model it replaces is kept
  int64_t checkpoint_bytes = 0;  // each
  int64_t num_checkpoints = 0;   // additional ones, at the peak
  int64_t free_bytes = 0;

  // The files that a node's ranks keep in offload_dir, how much of them is freed before the finished model is
  // written, and the free space there.
  int64_t offload_bytes = 0;
  int64_t discarded_bytes = 0;
  int64_t offload_free_bytes = 0;
  bool offload_shares_disk = false;  // it is on the same file system

  int64_t total_bytes() const { return model_bytes + num_checkpoints * checkpoint_bytes; }
  // Offloaded bytes that are still there when the model is written.
  int64_t bytes_beside_model() const { return offload_bytes - std::min(discarded_bytes, model_bytes); }
  // Free for model and checkpoints.
  int64_t bytes_left() const { return free_bytes - (offload_shares_disk ? bytes_beside_model() : 0); }
};

// `num_saves` checkpoints are still to be written; at most `total_limit` of this run are kept, plus one while
// it is being written. `num_present` already exist from the run being resumed.
struct CheckpointCount {
  int64_t num_saves = 0;
  std::optional<int64_t> total_limit;
  int64_t num_present = 0;
};

// Sizes follow docs/checkpoint-format.md.
DiskPlan plan_disk(const ParameterLayout& layout, const StoredParts& parts, const CheckpointCount& count);

// Bytes that a node's ranks keep in files, besides inputs of layers, and the part that is freed before the
// finished model is written.
int64_t offload_bytes(const TrainableModel& model, int num_nodes, int local_world_size,
                      const ZeroSettings& settings);
int64_t discarded_offload_bytes(const TrainableModel& model, int num_nodes, int local_world_size,
                                const ZeroSettings& settings);

// Folders named checkpoint-N in `output_dir`.
int64_t num_checkpoints_in(const std::filesystem::path& output_dir);
// Free bytes on the file system that holds `folder`, or will hold it.
int64_t free_disk_bytes(const std::filesystem::path& folder);
// Whether two folders are, or will be, on the same file system.
bool share_disk(const std::filesystem::path& a, const std::filesystem::path& b);

// disk_refusal() is one line if not even the finished model fits, disk_warning() one line if the checkpoints
// do not fit beside it; "" if they do.
std::string disk_refusal(const DiskPlan& plan, const std::string& output_dir);
// One line if what goes to offload_dir does not fit there; "" if it does.
std::string offload_refusal(const DiskPlan& plan, const std::string& offload_dir);
std::string disk_warning(const DiskPlan& plan, const std::string& output_dir);
// "model 1.00 GiB, 3 checkpoints of 6.00 GiB; 100 GiB free".
std::string disk_text(const DiskPlan& plan);

}  // namespace tessera
