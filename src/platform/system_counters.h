// What the system counts that slows a run down unseen. Any thread may ask;
// each call reads small files of /proc and /sys. `root` stands for "/" in tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace tessera {

// Pages that were wanted on another NUMA node and had to be taken from this one since the machine started.
struct NumaMisses {
  int node = 0;
  int64_t pages = 0;
};
std::vector<NumaMisses> numa_misses(const std::filesystem::path& root = "/");

// TCP segments sent again, in this process's network namespace.
std::optional<int64_t> tcp_retransmits(const std::filesystem::path& root = "/");

// What this process has read from and written to storage, not counting the page cache; nullopt if the kernel
// does not say.
struct DiskTraffic {
  int64_t read_bytes = 0;
  int64_t written_bytes = 0;
};
std::optional<DiskTraffic> disk_traffic(const std::filesystem::path& root = "/");

}  // namespace tessera
