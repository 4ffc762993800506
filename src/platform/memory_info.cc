#include "platform/memory_info.h"

#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

#include "platform/cgroup.h"

namespace tessera {
namespace {

// The value of a "Name:   123 kB" line, in bytes; 0 if absent.
int64_t read_kilobytes(const char* file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with(name + ":")) return std::stoll(line.substr(name.size() + 1)) * 1024;
  }
  return 0;
}

// Address space not counted in any plan because it is barely touched: malloc's arenas (64 MiB per thread),
// compiled oneDNN products.
constexpr int64_t kAddressSpaceReserveBytes = 192 << 20;

}  // namespace

MemoryInfo memory_info() {
  MemoryInfo info;
  info.total_bytes = read_kilobytes("/proc/meminfo", "MemTotal");
  info.available_bytes = read_kilobytes("/proc/meminfo", "MemAvailable");
  info.free_for_process_bytes = info.available_bytes;
  const CgroupLimits cgroup = cgroup_limits();
  info.cgroup_limit_bytes = cgroup.memory_bytes;
  info.cgroup_used_bytes = cgroup.memory_used_bytes;
  if (cgroup.memory_bytes) {
    info.free_for_process_bytes =
        std::min(info.free_for_process_bytes, *cgroup.memory_bytes - cgroup.memory_used_bytes.value_or(0));
  }
  rlimit address_space = {};
  if (getrlimit(RLIMIT_AS, &address_space) == 0 && address_space.rlim_cur != RLIM_INFINITY) {
    const int64_t mapped = read_kilobytes("/proc/self/status", "VmSize");
    info.free_for_process_bytes =
        std::min(info.free_for_process_bytes,
                 static_cast<int64_t>(address_space.rlim_cur) - mapped - kAddressSpaceReserveBytes);
  }
  info.free_for_process_bytes = std::max<int64_t>(info.free_for_process_bytes, 0);
  return info;
}

std::optional<ProportionalMemory> proportional_memory() {
  ProportionalMemory memory;
  int num_found = 0;
  std::ifstream in("/proc/self/smaps_rollup");
  for (std::string line; std::getline(in, line);) {
    const auto read = [&](std::string_view name, int64_t* bytes) {
      if (!line.starts_with(name)) return;
      *bytes = std::stoll(line.substr(name.size())) * 1024;
      ++num_found;
    };
    read("Pss_Anon:", &memory.anonymous_bytes);
    read("Pss_File:", &memory.file_bytes);
    read("Pss_Shmem:", &memory.shared_bytes);
  }
  if (num_found != 3) return std::nullopt;
  return memory;
}

int64_t resident_bytes() { return read_kilobytes("/proc/self/status", "VmRSS"); }

int64_t peak_resident_bytes() { return read_kilobytes("/proc/self/status", "VmHWM"); }

}  // namespace tessera
