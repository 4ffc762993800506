// Cores, memory nodes and huge pages, as the kernel describes them below /sys.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

// The hardware threads of each core that are among `cpus` (ascending), cores by their first one. A processor
// that the kernel does not describe, or describes as part of another core than itself, is a core of its own.
std::vector<std::vector<int>> cores_of(const std::vector<int>& cpus, const std::filesystem::path& root = "/");

// Processors of the machine that run, allowed or not; empty when the kernel does not say.
std::vector<int> online_cpus(const std::filesystem::path& root = "/");

struct NumaNode {
  int id;
  std::vector<int> cpus;
  int64_t memory_bytes;
};

// Ascending by id; empty when the kernel tells nothing. `root` stands for "/" in tests.
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

// Processor numbers of a list as in cpulist files: "0-3,8,10-11". Malformed parts end the list.
std::vector<int> parse_cpu_list(const std::string& text);
// The reverse.
std::string format_cpu_list(const std::vector<int>& cpus);

}  // namespace tessera
