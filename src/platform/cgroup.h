// Limits set by this process's control groups (v2, v1, and both side by side), the tightest of all levels.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace tessera {

struct CgroupLimits {
  std::optional<double> cpus;           // CPU time per unit of wall time: quota / period
  std::optional<int64_t> memory_bytes;  // memory.max, memory.high, memory.limit_in_bytes
  // Used at the level with the least left, not counting page cache, which is dropped before anything is
  // killed: a restarted run finds the files there that it has read before.
  std::optional<int64_t> memory_used_bytes;
};

// `root` stands for "/" in tests: <root>/proc/self/cgroup and mountinfo, <root>/sys/fs/cgroup where that does
// not name mounts.
CgroupLimits cgroup_limits(const std::filesystem::path& root = "/");

// Processes of this process's memory cgroup that the kernel's OOM killer has killed; 0 where the kernel does
// not count them.
int64_t cgroup_oom_kills(const std::filesystem::path& root = "/");

// Time for which CPU quotas have kept this process's groups from running, over all levels; nullopt where the
// kernel does not count it.
std::optional<double> cgroup_throttled_s(const std::filesystem::path& root = "/");

}  // namespace tessera
