// Limits set by this process's control groups (v2 and v1), the tightest of all levels.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace tessera {

struct CgroupLimits {
  std::optional<double> cpus;           // CPU time per unit of wall time: quota / period
  std::optional<int64_t> memory_bytes;  // memory.max, memory.limit_in_bytes
  // Used at the level with the least left, not counting page cache that can be dropped.
  std::optional<int64_t> memory_used_bytes;
};

// `root` stands for "/" in tests: <root>/proc/self/cgroup, <root>/sys/fs/cgroup.
CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");

// Processes of this process's memory cgroup that the kernel's OOM killer has killed; 0 where the kernel does
// not count them.
int64_t cgroup_oom_kills(const std::filesystem::path& root = "/");

// Time for which CPU quotas have kept this process's groups from running, over all levels; nullopt where the
// kernel does not count it.
std::optional<double> cgroup_throttled_s(const std::filesystem::path& root = "/");

}  // namespace tessera
