#include "platform/cgroup.h"

#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

namespace tessera {
namespace {

namespace fs = std::filesystem;

std::optional<std::string> first_line(const fs::path& path) {
  std::ifstream in(path);
  std::string line;
  if (!std::getline(in, line)) return std::nullopt;
  return line;
}

// A whole number; "max" and anything larger than any memory mean no limit.
std::optional<int64_t> read_limit(const fs::path& path) {
  const std::optional<std::string> line = first_line(path);
  if (!line) return std::nullopt;
  std::istringstream in(*line);
  int64_t value = 0;
  if (!(in >> value) || value < 0 || value >= std::numeric_limits<int64_t>::max() / 4096 * 4096 / 2)
    return std::nullopt;
  return value;
}

std::optional<int64_t> find_stat(const fs::path& path, const std::string& key) {
  std::ifstream in(path);
  std::string name;
  for (int64_t value = 0; in >> name >> value;) {
    if (name == key) return value;
  }
  return std::nullopt;
}
int64_t read_stat(const fs::path& path, const std::string& key) { return find_stat(path, key).value_or(0); }

struct Level {
  fs::path folder;
  bool v2;
  bool has_memory;
  bool has_cpu;
};

// Every directory from this process's group up to the root, for each hierarchy.
std::vector<Level> levels(const fs::path& root) {
  std::vector<Level> found;
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? std::string::npos : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    fs::path group = fs::path(line.substr(second + 1)).relative_path();
    const bool v2 = controllers.empty();
    const bool memory = v2 || controllers.find("memory") != std::string::npos;
    const bool cpu = v2 || ("," + controllers + ",").find(",cpu,") != std::string::npos;
    if (!memory && !cpu) continue;
    const fs::path base = v2 ? root / "sys/fs/cgroup" : root / "sys/fs/cgroup" / (memory ? "memory" : "cpu");
    for (;;) {
      found.push_back({base / group, v2, memory, cpu});
      if (group.empty()) break;
      group = group.parent_path();
    }
  }
  return found;
}

std::optional<double> cpu_quota(const Level& level) {
  double quota = 0;
  double period = 0;
  if (level.v2) {
    const std::optional<std::string> line = first_line(level.folder / "cpu.max");
    if (!line) return std::nullopt;
    std::istringstream in(*line);
    if (!(in >> quota >> period)) return std::nullopt;  // "max 100000"
  } else {
    quota = static_cast<double>(read_limit(level.folder / "cpu.cfs_quota_us").value_or(0));
    period = static_cast<double>(read_limit(level.folder / "cpu.cfs_period_us").value_or(0));
  }
  if (quota <= 0 || period <= 0) return std::nullopt;
  return quota / period;
}

}  // namespace

CgroupLimits cgroup_limits(const fs::path& root) {
  CgroupLimits limits;
  for (const Level& level : levels(root)) {
    if (level.has_cpu) {
      const std::optional<double> quota = cpu_quota(level);
      if (quota && (!limits.cpus || *quota < *limits.cpus)) limits.cpus = quota;
    }
    if (!level.has_memory) continue;
    const auto limit = read_limit(level.folder / (level.v2 ? "memory.max" : "memory.limit_in_bytes"));
    if (!limit) continue;
    const int64_t charged =
        read_limit(level.folder / (level.v2 ? "memory.current" : "memory.usage_in_bytes")).value_or(0);
    const int64_t droppable =
        read_stat(level.folder / "memory.stat", level.v2 ? "inactive_file" : "total_inactive_file");
    const int64_t used = charged > droppable ? charged - droppable : 0;
    if (!limits.memory_bytes || *limit - used < *limits.memory_bytes - *limits.memory_used_bytes) {
      limits.memory_bytes = limit;
      limits.memory_used_bytes = used;
    }
  }
  return limits;
}

int64_t cgroup_oom_kills(const fs::path& root) {
  for (const Level& level : levels(root)) {
    const fs::path file = level.folder / (level.v2 ? "memory.events" : "memory.oom_control");
    if (level.has_memory && fs::exists(file)) return read_stat(file, "oom_kill");
  }
  return 0;
}

std::optional<double> cgroup_throttled_s(const fs::path& root) {
  std::optional<double> total;
  for (const Level& level : levels(root)) {
    if (!level.has_cpu) continue;
    const std::optional<int64_t> time =
        find_stat(level.folder / "cpu.stat", level.v2 ? "throttled_usec" : "throttled_time");
    if (time) total = total.value_or(0) + static_cast<double>(*time) * (level.v2 ? 1e-6 : 1e-9);
  }
  return total;
}

}  // namespace tessera
