// The network between the nodes of a job as `tessera bench network --json` has measured it.
#pragma once

#include <filesystem>

namespace tessera {

struct MeasuredNetwork {
  double gbit_per_s = 0;  // of a typical link and direction: payload through Tessera's transport
  double latency_s = 0;   // half of a round trip of a few bytes
};

// Error(kNoInput, kBadData) naming the file if it cannot be read or is no such measurement.
MeasuredNetwork read_measured_network(const std::filesystem::path& file);

}  // namespace tessera
