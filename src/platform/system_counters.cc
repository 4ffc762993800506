#include "platform/system_counters.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

#include "base/text.h"
#include "platform/system.h"

namespace tessera {

namespace fs = std::filesystem;

namespace {

// In lines such as "Node 0 MemFree:  1234 kB".
int64_t free_kilobytes(const fs::path& meminfo) {
  std::ifstream in(meminfo);
  for (std::string word; in >> word;) {
    int64_t value = 0;
    if (word == "MemFree:" && in >> value) return value;
  }
  return 0;
}

}  // namespace

std::vector<NumaMemory> numa_memory(const fs::path& root) {
  constexpr std::string_view kNode = "node";
  std::vector<NumaMemory> nodes;
  for (const fs::path& folder : entries_of(root / "sys/devices/system/node", std::string(kNode))) {
    const auto number = parse_integer(folder.filename().native().substr(kNode.size()));
    if (!number) continue;
    nodes.push_back({static_cast<int>(*number), 1024 * free_kilobytes(folder / "meminfo"),
                     number_of_line(folder / "numastat", "numa_miss").value_or(0)});
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
  for (const fs::path& device : entries_of(root / "sys/class/infiniband")) {
    for (const fs::path& port : entries_of(device / "ports")) {
      for (const char* folder : {"counters", "hw_counters"}) {
        for (const fs::path& file : entries_of(port / folder)) {
          const std::optional<int64_t> value = number_in(file);
          // "lifespan" is how long the kernel keeps the values, in ms.
          if (!value || file.filename() == "lifespan") continue;
          counters.push_back({device.filename(), port.filename(), file.filename(), *value});
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
  const fs::path io = root / "proc/self/io";
  const auto read = number_of_line(io, "read_bytes"), written = number_of_line(io, "write_bytes");
  return read && written ? std::optional(DiskTraffic{*read, *written}) : std::nullopt;
}

}  // namespace tessera
