// Collectives between two hosts against what TCP carries between them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench_line.h"
#include "bench/measure.h"

namespace tessera {

struct NetworkBenchOptions {
  std::vector<int64_t> sizes_bytes = {int64_t{32} << 20, int64_t{512} << 20};  // on the wire
  int connections = 4;
  std::string fabric = "tcp";  // NetworkOptions::fabric; another one is compared with tcp in the same rounds
};

// all_gather, as it is and in int8, and reduce_scatter of each size between two network namespaces, in turn
// with iperf3 using 8 streams over the same link. Speeds are Gbit/s of payload on the link, both directions
// together; for iperf3 one direction, which here is no slower than both together (the processor is the
// limit). Both hosts share the processors, so rounding and summing compete with moving the data: a second
// line for reduce_scatter, `_bound`, compares with iperf3 followed by the same sums without a network.
// Results are verified first. Error(kBadConfig) without root, iproute2 or iperf3.
std::vector<BenchLine> run_network_bench(const NetworkBenchOptions& options, const MeasureOptions& measure);

}  // namespace tessera
