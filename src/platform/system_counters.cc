#include "platform/system_counters.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>
#include <utility>

namespace tessera {

namespace fs = std::filesystem;

namespace {

// The number that follows `name` in a text of words, as in numastat and meminfo.
int64_t value_after(std::istream&& in, std::string_view name) {
  for (std::string word; in >> word;) {
    int64_t value = 0;
    if (word == name && in >> value) return value;
  }
  return 0;
}

}  // namespace

std::vector<NumaMemory> numa_memory(const fs::path& root) {
  std::vector<NumaMemory> nodes;
  std::error_code ignored;
  constexpr std::string_view kNode = "node";
  for (const fs::directory_entry& entry : fs::directory_iterator(root / "sys/devices/system/node", ignored)) {
    const std::string name = entry.path().filename().string();
    NumaMemory node;
    const char* end = name.data() + name.size();
    if (!name.starts_with(kNode) || std::from_chars(name.data() + kNode.size(), end, node.node).ptr != end) {
      continue;
    }
    node.free_bytes = 1024 * value_after(std::ifstream(entry.path() / "meminfo"), "MemFree:");
    node.missed_pages = value_after(std::ifstream(entry.path() / "numastat"), "numa_miss");
    nodes.push_back(node);
  }
  std::ranges::sort(nodes, {}, &NumaMemory::node);
  return nodes;
}

// Pairs of lines: names, then values.
std::optional<TcpSegments> tcp_segments(const fs::path& proc) {
  std::ifstream in(proc / "net/snmp");
  TcpSegments segments;
  int num_found = 0;
  for (std::string names, values; std::getline(in, names) && std::getline(in, values);) {
    if (!names.starts_with("Tcp:")) continue;
    std::istringstream name_of(names), value_of(values);
    for (std::string name, value; name_of >> name && value_of >> value;) {
      if (name == "OutSegs") segments.sent = std::atoll(value.c_str()), ++num_found;
      if (name == "RetransSegs") segments.sent_again = std::atoll(value.c_str()), ++num_found;
    }
  }
  return num_found == 2 ? std::optional(segments) : std::nullopt;
}

// <device>/ports/<port>/{counters,hw_counters}/<name>, one number per file.
std::vector<RdmaCounter> rdma_counters(const fs::path& root) {
  std::vector<RdmaCounter> counters;
  std::error_code ignored;
  for (const fs::directory_entry& device : fs::directory_iterator(root / "sys/class/infiniband", ignored)) {
    for (const fs::directory_entry& port : fs::directory_iterator(device.path() / "ports", ignored)) {
      for (const char* folder : {"counters", "hw_counters"}) {
        for (const fs::directory_entry& file : fs::directory_iterator(port.path() / folder, ignored)) {
          RdmaCounter counter{device.path().filename(), port.path().filename(), file.path().filename()};
          // "lifespan" is how long the kernel keeps the values, in ms.
          if (counter.name != "lifespan" && std::ifstream(file.path()) >> counter.value) {
            counters.push_back(std::move(counter));
          }
        }
      }
    }
  }
  return counters;
}

std::optional<double> cpu_frequency_hertz(const fs::path& root) {
  std::ifstream in(root / "proc/cpuinfo");
  double sum_mhz = 0;
  int num_found = 0;
  for (std::string line; std::getline(in, line);) {
    if (!line.starts_with("cpu MHz")) continue;
    sum_mhz += std::atof(line.c_str() + line.find(':') + 1);
    ++num_found;
  }
  return num_found > 0 ? std::optional(sum_mhz / num_found * 1e6) : std::nullopt;
}

std::optional<DiskTraffic> disk_traffic(const fs::path& root) {
  std::ifstream in(root / "proc/self/io");
  DiskTraffic traffic;
  int num_found = 0;
  std::string name;
  for (int64_t value = 0; in >> name >> value;) {
    if (name == "read_bytes:") traffic.read_bytes = value, ++num_found;
    if (name == "write_bytes:") traffic.written_bytes = value, ++num_found;
  }
  return num_found == 2 ? std::optional(traffic) : std::nullopt;
}

}  // namespace tessera
