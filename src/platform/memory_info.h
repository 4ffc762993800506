// Memory of the machine, the cgroup and this process. All sizes in bytes.
#pragma once

#include <cstdint>
#include <optional>

namespace tessera {

struct MemoryInfo {
  int64_t total_bytes = 0;                    // MemTotal
  int64_t available_bytes = 0;                // MemAvailable
  std::optional<int64_t> cgroup_limit_bytes;  // the tightest memory.max (v2) or limit_in_bytes (v1)
  std::optional<int64_t> cgroup_used_bytes;   // without page cache
  // Bytes this process can still allocate before it is killed or swaps: the least of the above and RLIMIT_AS.
  int64_t free_for_process_bytes = 0;
};

MemoryInfo memory_info();

// Resident set of this process now, and its peak so far (VmRSS, VmHWM).
int64_t resident_bytes();
int64_t peak_resident_bytes();

// Memory of this process, counting its proportional share of shared mappings, so that a sum over processes
// counts nothing twice (/proc/self/smaps_rollup).
struct ProportionalMemory {
  int64_t anonymous_bytes = 0;  // heap, stacks, private mappings
  int64_t file_bytes = 0;       // the program and its libraries
  int64_t shared_bytes = 0;     // shared memory

  int64_t private_bytes() const { return anonymous_bytes + file_bytes; }
};

// nullopt where the kernel does not report it (before Linux 5.3). Walks all pages: about 20 ms for 10 GB of
// small pages.
std::optional<ProportionalMemory> proportional_memory();

}  // namespace tessera
