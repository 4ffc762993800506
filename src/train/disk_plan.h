// What a run will write to the file system of its output folder, known before it starts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "tensor/dtype.h"

namespace tessera {

// Weights and optimizer state; configuration, tokenizer and reports are small beside them.
struct DiskPlan {
  int64_t model_bytes = 0;       // the finished model; one that it replaces is kept
  int64_t checkpoint_bytes = 0;  // of one
  int64_t num_checkpoints = 0;   // more than now, when they are most
  int64_t free_bytes = 0;

  int64_t total_bytes() const { return model_bytes + num_checkpoints * checkpoint_bytes; }
};

// When checkpoints are written: `num_saves` more of them; at most `total_limit` of this run are kept, and one
// more while it is written. `num_present` are there of the run that this one goes on with.
struct CheckpointCount {
  int64_t num_saves = 0;
  std::optional<int64_t> total_limit;
  int64_t num_present = 0;
};

// Sizes as docs/checkpoint-format.md has them.
DiskPlan plan_disk(int64_t num_parameters, DType save_dtype, const CheckpointCount& count);

// Folders named checkpoint-N in `output_dir`.
int64_t num_checkpoints_in(const std::filesystem::path& output_dir);
// Of the file system that has `folder`, or will have it.
int64_t free_disk_bytes(const std::filesystem::path& folder);

// One line when not even the finished model fits, and one when the checkpoints do not fit beside it; "" = it
// does.
std::string disk_refusal(const DiskPlan& plan, const std::string& output_dir);
std::string disk_warning(const DiskPlan& plan, const std::string& output_dir);
// "model 1.00 GiB, 3 checkpoints of 6.00 GiB; 100 GiB free".
std::string disk_text(const DiskPlan& plan);

}  // namespace tessera
