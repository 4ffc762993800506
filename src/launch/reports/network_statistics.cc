#include "launch/reports/network_statistics.h"

#include <fstream>
#include <sstream>
#include <string>

#include "platform/system_counters.h"

namespace tessera {
namespace {

// "eth0: bytes packets errs drop fifo frame compressed multicast  bytes packets errs drop ..."
void add_interfaces(const std::filesystem::path& path, NetworkStatistics* sums) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t colon = line.find(':');
    if (colon == std::string::npos) continue;
    const std::string name = line.substr(line.find_first_not_of(' '), colon - line.find_first_not_of(' '));
    if (name == "lo") continue;
    std::istringstream numbers(line.substr(colon + 1));
    constexpr int kPerDirection = 8;
    int64_t values[2 * kPerDirection] = {};
    for (int64_t& value : values) numbers >> value;
    sums->received_bytes += values[0];
    sums->sent_bytes += values[kPerDirection];
    sums->faulty_packets += values[2] + values[kPerDirection + 2];
    sums->dropped_packets += values[3] + values[kPerDirection + 3];
  }
}

}  // namespace

NetworkStatistics NetworkStatistics::operator-(const NetworkStatistics& before) const {
  return {.sent_bytes = sent_bytes - before.sent_bytes,
          .received_bytes = received_bytes - before.received_bytes,
          .dropped_packets = dropped_packets - before.dropped_packets,
          .faulty_packets = faulty_packets - before.faulty_packets,
          .sent_segments = sent_segments - before.sent_segments,
          .resent_segments = resent_segments - before.resent_segments};
}

NetworkStatistics read_network_statistics(const std::filesystem::path& proc) {
  NetworkStatistics statistics;
  add_interfaces(proc / "net" / "dev", &statistics);
  const TcpSegments tcp = tcp_segments(proc).value_or(TcpSegments{});
  statistics.sent_segments = tcp.sent;
  statistics.resent_segments = tcp.sent_again;
  return statistics;
}

}  // namespace tessera
