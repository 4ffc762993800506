#include "platform/cgroup.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <sstream>
#include <string>
#include <vector>

#include "platform/system.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

// Values larger than any memory mean no limit.
std::optional<int64_t> finite(std::optional<int64_t> value) {
  constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max() / 2;
  return value && *value >= 0 && *value < kNoLimit ? value : std::nullopt;
}

// A whole number; "max" means no limit.
std::optional<int64_t> read_limit(const fs::path& path) { return finite(number_in(path)); }

int64_t read_stat(const fs::path& path, const std::string& key) {
  return number_of_line(path, key).value_or(0);
}

// Where a hierarchy is mounted, and which of its groups is seen there: "/" unless a container has the mount
// of its host's hierarchy without a cgroup namespace.
struct Mount {
  fs::path folder;
  fs::path top;
  bool v2;
  std::string controllers;  // of v1: "cpu,cpuacct", among other options
};

// Where systemd and container runtimes mount them.
std::vector<Mount> usual_mounts(const fs::path& root) {
  const fs::path base = root / "sys/fs/cgroup";
  return {{base, "/", true, ""}, {base / "memory", "/", false, "memory"}, {base / "cpu", "/", false, "cpu"}};
}

// "31 23 0:28 /top /folder rw,relatime shared:7 - cgroup2 cgroup2 rw": proc(5), mountinfo.
std::vector<Mount> mounts(const fs::path& root) {
  std::vector<Mount> found;
  std::ifstream in(root / "proc/self/mountinfo");
  for (std::string line; std::getline(in, line);) {
    const size_t dash = line.find(" - cgroup");
    if (dash == std::string::npos) continue;
    std::istringstream before(line), after(line.substr(dash + 3));
    std::string skipped, top, folder, type, source, options;
    before >> skipped >> skipped >> skipped >> top >> folder;
    after >> type >> source >> options;
    if (type == "cgroup2" || type == "cgroup")
      found.push_back({root / fs::path(folder).relative_path(), top, type == "cgroup2", options});
  }
  return found.empty() ? usual_mounts(root) : found;
}

bool has_controller(const std::string& controllers, const std::string& name) {
  return ("," + controllers + ",").find("," + name + ",") != std::string::npos;
}

// The group as seen at the mount; the mount itself if the group is not below what it shows.
fs::path group_below(const Mount& mount, const std::string& group) {
  const fs::path below = fs::path(group).lexically_relative(mount.top);
  const bool is_below = !below.empty() && *below.begin() != ".." && group.find("/..") == std::string::npos;
  return is_below && below != "." ? below : fs::path();
}

struct Level {
  fs::path folder;
  bool v2;
  bool has_memory;
  bool has_cpu;
};

// Every directory from this process's group up to the topmost that can be seen, for each hierarchy. In a
// hybrid system some controllers are v1's and the others v2's: where one is not, its files are missing.
std::vector<Level> levels(const fs::path& root) {
  std::vector<Level> found;
  const std::vector<Mount> all = mounts(root);
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const auto first = line.find(':');
    const auto second = first == std::string::npos ? std::string::npos : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    const bool memory = v2 || has_controller(controllers, "memory");
    const bool cpu = v2 || has_controller(controllers, "cpu");
    if (!memory && !cpu) continue;
    const auto mount = std::find_if(all.begin(), all.end(), [&](const Mount& each) {
      return each.v2 == v2 && (v2 || has_controller(each.controllers, memory ? "memory" : "cpu"));
    });
    if (mount == all.end()) continue;
    fs::path group = group_below(*mount, line.substr(second + 1));
    for (;;) {
      found.push_back({mount->folder / group, v2, memory, cpu});
      if (group.empty()) break;
      group = group.parent_path();
    }
  }
  return found;
}

// The memory a group may use before it is killed, or throttled until it frees memory (memory.high). v1 also
// tells the tightest limit of parent groups, which a container may not see.
std::optional<int64_t> memory_limit(const Level& level) {
  std::optional<int64_t> least;
  const auto take = [&](std::optional<int64_t> limit) {
    if (limit && (!least || *limit < *least)) least = limit;
  };
  if (level.v2) {
    take(read_limit(level.folder / "memory.max"));
    take(read_limit(level.folder / "memory.high"));
  } else {
    take(read_limit(level.folder / "memory.limit_in_bytes"));
    take(finite(number_of_line(level.folder / "memory.stat", "hierarchical_memory_limit")));
  }
  return least;
}

std::optional<double> cpu_quota(const Level& level) {
  double quota = 0;
  double period = 0;
  if (level.v2) {
    const std::optional<std::string> line = first_line_of(level.folder / "cpu.max");
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
    const std::optional<int64_t> limit = memory_limit(level);
    if (!limit) continue;
    const int64_t charged =
        read_limit(level.folder / (level.v2 ? "memory.current" : "memory.usage_in_bytes")).value_or(0);
    const fs::path stat = level.folder / "memory.stat";
    const std::string total = level.v2 ? "" : "total_";
    const int64_t droppable =
        read_stat(stat, total + "inactive_file") + read_stat(stat, total + "active_file");
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
    if (!level.has_memory) continue;
    const fs::path file = level.folder / (level.v2 ? "memory.events" : "memory.oom_control");
    if (const std::optional<int64_t> kills = number_of_line(file, "oom_kill")) return *kills;
  }
  return 0;
}

std::optional<double> cgroup_throttled_s(const fs::path& root) {
  std::optional<double> total;
  for (const Level& level : levels(root)) {
    if (!level.has_cpu) continue;
    const std::optional<int64_t> time =
        number_of_line(level.folder / "cpu.stat", level.v2 ? "throttled_usec" : "throttled_time");
    if (time) total = total.value_or(0) + static_cast<double>(*time) * (level.v2 ? 1e-6 : 1e-9);
  }
  return total;
}

}  // namespace tessera
