// Kernel counters of events that slow a run down unseen. Thread-safe; each call reads small files of /proc
// and /sys. `root` stands for "/" in tests.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace tessera {

struct NumaMemory {
  int node = 0;
  int64_t free_bytes = 0;
  // Wanted on another node and taken from this one, since the machine started.
  int64_t missed_pages = 0;
};
// One for each NUMA node, in ascending order.
std::vector<NumaMemory> numa_memory(const std::filesystem::path& root = "/");

// Counts those of this process's network namespace.
struct TcpSegments {
  int64_t sent = 0;  // not counting those sent again
  int64_t sent_again = 0;
};
// From <proc>/net/snmp; nullopt where that cannot be read.
std::optional<TcpSegments> tcp_segments(const std::filesystem::path& proc = "/proc/self");

// A counter of an EFA, InfiniBand or RoCE adapter under the kernel's name and in its units ("port_xmit_data"
// counts words of 4 bytes, "tx_bytes" bytes).
struct RdmaCounter {
  std::string device, port, name;
  int64_t value = 0;
};
std::vector<RdmaCounter> rdma_counters(const std::filesystem::path& root = "/");

// Mean clock of the machine's processors now; nullopt where /proc/cpuinfo has none.
std::optional<double> cpu_frequency_hertz(const std::filesystem::path& root = "/");

// Bytes this process has read from and written to storage, excluding the page cache; nullopt if the kernel
// does not report them.
struct DiskTraffic {
  int64_t read_bytes = 0;
  int64_t written_bytes = 0;
};
std::optional<DiskTraffic> disk_traffic(const std::filesystem::path& root = "/");

}  // namespace tessera
