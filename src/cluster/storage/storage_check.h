// Is this folder fit for data sets, checkpoints and results of a training?
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cluster/check.h"
#include "cluster/kernel_log.h"
#include "cluster/storage/folder_trial.h"
#include "cluster/storage/mounts.h"

namespace tessera {

// Checks: file_system, options, responds, versions, layout, write, read, fsync, rename, locks, space. Takes
// at most about `seconds`, also if the server hangs. `root` is where /proc and /dev are read.
std::vector<Check> check_storage(const std::filesystem::path& folder, double seconds,
                                 const std::filesystem::path& root = "/");

// The parts, each from what has been found.
// Whether the trial got through, and how far if not; named responds.
Check check_answer(const std::optional<Mount>& mount, const TrialReport& report, double seconds);
Check describe_file_system(const std::optional<Mount>& mount);
Check check_mount_options(const std::optional<Mount>& mount);
// Whether the kernel has said within the last day that a Lustre server refused this client for its version.
Check check_lustre_versions(const std::optional<std::vector<KernelMessage>>& messages, double uptime);
Check check_lustre_layout(const std::optional<Mount>& mount, const TrialReport& report);
// Fails if fewer than `limit_bytes` are free, or hardly an inode on a file system that has a number of them.
Check check_space(const std::string& name, const TrialReport& report, double limit_bytes);
std::vector<Check> judge_trial(const std::filesystem::path& folder, const std::optional<Mount>& mount,
                               const TrialReport& report, double seconds);

}  // namespace tessera
