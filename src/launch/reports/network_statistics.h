// The kernel's traffic counters of this machine (network namespace).
#pragma once

#include <cstdint>
#include <filesystem>

namespace tessera {

struct NetworkStatistics {
  int64_t sent_bytes = 0;  // on all interfaces except loopback
  int64_t received_bytes = 0;
  int64_t dropped_packets = 0;  // in both directions, by the interfaces
  int64_t faulty_packets = 0;
  int64_t sent_segments = 0;  // TCP
  int64_t resent_segments = 0;

  NetworkStatistics operator-(const NetworkStatistics& before) const;
};

// Reads <proc>/net/dev and <proc>/net/snmp; zeros where they cannot be read.
NetworkStatistics read_network_statistics(const std::filesystem::path& proc = "/proc/self");

}  // namespace tessera
