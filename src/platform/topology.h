// Cores, NUMA nodes and huge pages, as the kernel describes them under /sys.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

// The hardware threads of each core that are in `cpus` (ascending), cores ordered by their first thread. A
// processor that the kernel does not describe, or describes as part of a core that does not include it, is
// its own core.
std::vector<std::vector<int>> cores_of(const std::vector<int>& cpus, const std::filesystem::path& root = "/");

// The machine's online processors, allowed or not; empty if the kernel does not report them.
std::vector<int> online_cpus(const std::filesystem::path& root = "/");

struct NumaNode {
  int id;
  std::vector<int> cpus;
  int64_t memory_bytes;
};

// Ascending by id; empty if the kernel reports none. `root` stands for "/" in tests.
std::vector<NumaNode> numa_nodes(const std::filesystem::path& root = "/");

struct HugePagePool {
  int64_t page_bytes;
  int64_t total_pages;
  int64_t free_pages;
};

struct HugePages {
  std::string transparent;          // "always", "madvise", "never", "" = unknown
  std::vector<HugePagePool> pools;  // reserved pages, ascending by size
};

HugePages huge_pages(const std::filesystem::path& root = "/");

// Parses a list in the format of cpulist files: "0-3,8,10-11". Parsing stops at the first malformed part.
std::vector<int> parse_cpu_list(const std::string& text);
// The inverse of parse_cpu_list().
std::string format_cpu_list(const std::vector<int>& cpus);

}  // namespace tessera
