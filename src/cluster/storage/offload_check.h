// Is this folder fit for what a run keeps on a disk instead of in memory (offload_dir)?
#pragma once

#include <filesystem>
#include <optional>
#include <vector>

#include "cluster/check.h"
#include "cluster/storage/folder_trial.h"
#include "cluster/storage/mounts.h"

namespace tessera {

// Checks: file_system, responds, space, transfers, write, read, update, checkpoints. Takes at most about
// `seconds`, also if the disk hangs. `root` is where /proc is read.
std::vector<Check> check_offload(const std::filesystem::path& folder, double seconds,
                                 const std::filesystem::path& root = "/");

// The parts, each from what has been found.
Check check_offload_file_system(const std::optional<Mount>& mount);
// From numbers free_bytes, total_bytes, read_bytes_per_s, written_bytes_per_s, direct, io_uring and
// shares_space (0 or 1).
std::vector<Check> judge_offload(const std::filesystem::path& folder, const std::optional<Mount>& mount,
                                 const TrialReport& report, double seconds);

}  // namespace tessera
