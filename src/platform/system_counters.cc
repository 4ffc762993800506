#include "platform/system_counters.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace tessera {

namespace fs = std::filesystem;

std::vector<NumaMisses> numa_misses(const fs::path& root) {
  std::vector<NumaMisses> misses;
  std::error_code ignored;
  constexpr std::string_view kNode = "node";
  for (const fs::directory_entry& entry : fs::directory_iterator(root / "sys/devices/system/node", ignored)) {
    const std::string name = entry.path().filename().string();
    NumaMisses of_node;
    const char* end = name.data() + name.size();
    if (!name.starts_with(kNode) ||
        std::from_chars(name.data() + kNode.size(), end, of_node.node).ptr != end) {
      continue;
    }
    std::ifstream in(entry.path() / "numastat");
    std::string key;
    for (int64_t value = 0; in >> key >> value;) {
      if (key != "numa_miss") continue;
      of_node.pages = value;
      misses.push_back(of_node);
    }
  }
  std::ranges::sort(misses, {}, &NumaMisses::node);
  return misses;
}

// Pairs of lines: names, then values.
std::optional<int64_t> tcp_retransmits(const fs::path& root) {
  std::ifstream in(root / "proc/self/net/snmp");
  for (std::string names, values; std::getline(in, names) && std::getline(in, values);) {
    if (!names.starts_with("Tcp:")) continue;
    std::istringstream name_of(names), value_of(values);
    for (std::string name, value; name_of >> name && value_of >> value;) {
      if (name == "RetransSegs") return std::atoll(value.c_str());
    }
  }
  return std::nullopt;
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
