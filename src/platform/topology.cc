#include "platform/topology.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <utility>

#include "platform/system.h"

namespace tessera {
namespace {

std::string read_line(const std::filesystem::path& path) { return first_line_of(path).value_or(""); }

// The number between `prefix` and `suffix` in a directory name: "node12" -> 12.
std::optional<int64_t> number_after(const std::string& name, const std::string& prefix,
                                    const std::string& suffix) {
  if (!name.starts_with(prefix) || !name.ends_with(suffix)) return std::nullopt;
  int64_t value = 0;
  const char* end = name.data() + name.size() - suffix.size();
  const auto result = std::from_chars(name.data() + prefix.size(), end, value);
  return result.ec == std::errc() && result.ptr == end ? std::optional(value) : std::nullopt;
}

// "Node 0 MemTotal:  12345 kB".
int64_t node_memory_bytes(const std::filesystem::path& meminfo) {
  std::ifstream in(meminfo);
  for (std::string line; std::getline(in, line);) {
    const size_t at = line.find("MemTotal:");
    if (at == std::string::npos) continue;
    int64_t kilobytes = 0;
    std::istringstream(line.substr(at + 9)) >> kilobytes;
    return kilobytes * 1024;
  }
  return 0;
}

// Hardware threads of a processor's core, itself included; empty if the kernel does not report them. The
// second name is the one used before Linux 5.3.
std::vector<int> hardware_threads(int cpu, const std::filesystem::path& cpus) {
  for (const char* name : {"core_cpus_list", "thread_siblings_list"}) {
    std::vector<int> listed = parse_cpu_list(read_line(cpus / fmt::format("cpu{}", cpu) / "topology" / name));
    if (std::find(listed.begin(), listed.end(), cpu) != listed.end()) return listed;
  }
  return {};
}

}  // namespace

std::vector<std::vector<int>> cores_of(const std::vector<int>& cpus, const std::filesystem::path& root) {
  // The first thread of each processor's core: a processor that reports nothing may be listed by its sibling.
  std::map<int, int> first_threads;
  for (const int cpu : cpus) {
    const std::vector<int> listed = hardware_threads(cpu, root / "sys/devices/system/cpu");
    for (const int each : listed) first_threads.try_emplace(each, listed.front());
  }
  std::map<int, std::vector<int>> cores;
  for (const int cpu : cpus) {
    const auto found = first_threads.find(cpu);
    cores[found == first_threads.end() ? cpu : found->second].push_back(cpu);
  }
  std::vector<std::vector<int>> out;
  for (auto& [first, threads] : cores) out.push_back(std::move(threads));
  std::sort(out.begin(), out.end());
  return out;
}

std::vector<int> online_cpus(const std::filesystem::path& root) {
  return parse_cpu_list(read_line(root / "sys/devices/system/cpu/online"));
}

std::vector<NumaNode> numa_nodes(const std::filesystem::path& root) {
  std::vector<NumaNode> nodes;
  for (const auto& path : entries_of(root / "sys/devices/system/node")) {
    const std::optional<int64_t> id = number_after(path.filename().string(), "node", "");
    if (!id) continue;
    nodes.push_back({static_cast<int>(*id), parse_cpu_list(read_line(path / "cpulist")),
                     node_memory_bytes(path / "meminfo")});
  }
  std::sort(nodes.begin(), nodes.end(), [](const NumaNode& a, const NumaNode& b) { return a.id < b.id; });
  return nodes;
}

HugePages huge_pages(const std::filesystem::path& root) {
  HugePages result;
  const std::string modes = read_line(root / "sys/kernel/mm/transparent_hugepage/enabled");
  const size_t open = modes.find('[');  // always [madvise] never
  const size_t close = modes.find(']');
  if (open != std::string::npos && close != std::string::npos && open < close) {
    result.transparent = modes.substr(open + 1, close - open - 1);
  }
  for (const auto& path : entries_of(root / "sys/kernel/mm/hugepages")) {
    const std::optional<int64_t> kilobytes = number_after(path.filename().string(), "hugepages-", "kB");
    if (!kilobytes) continue;
    result.pools.push_back({*kilobytes * 1024, number_in(path / "nr_hugepages").value_or(0),
                            number_in(path / "free_hugepages").value_or(0)});
  }
  std::sort(result.pools.begin(), result.pools.end(),
            [](const HugePagePool& a, const HugePagePool& b) { return a.page_bytes < b.page_bytes; });
  return result;
}

std::vector<int> parse_cpu_list(const std::string& text) {
  std::vector<int> cpus;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end) {
    int first = 0;
    auto result = std::from_chars(at, end, first);
    if (result.ec != std::errc()) break;
    int last = first;
    if (result.ptr < end && *result.ptr == '-') {
      result = std::from_chars(result.ptr + 1, end, last);
      if (result.ec != std::errc()) break;
    }
    for (int cpu = first; cpu <= last; ++cpu) cpus.push_back(cpu);
    at = result.ptr;
    if (at < end && *at != ',') break;
    ++at;
  }
  return cpus;
}

std::string format_cpu_list(const std::vector<int>& cpus) {
  std::string out;
  for (size_t i = 0; i < cpus.size();) {
    size_t last = i;
    while (last + 1 < cpus.size() && cpus[last + 1] == cpus[last] + 1) ++last;
    if (!out.empty()) out += ',';
    out += last == i ? fmt::format("{}", cpus[i]) : fmt::format("{}-{}", cpus[i], cpus[last]);
    i = last + 1;
  }
  return out;
}

}  // namespace tessera
