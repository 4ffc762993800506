// Limits that the control groups of this process set (v2 and v1), the tightest of all levels.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace tessera {

struct CgroupLimits {
  std::optional<double> cpus;           // CPU time per wall time: quota / period
  std::optional<int64_t> memory_bytes;  // memory.max, memory.limit_in_bytes
  // Used by the level that has the least left, without page cache that can be dropped.
  std::optional<int64_t> memory_used_bytes;
};

// `root` stands for "/" in tests: <root>/proc/self/cgroup, <root>/sys/fs/cgroup.
CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");

// Processes of this process's memory group that the kernel has killed for lack of memory; 0 where it does not
// count them.
int64_t cgroup_oom_kills(const std::filesystem::path& root = "/");

}  // namespace tessera
