// Collectives between two hosts against what TCP carries between them.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/bench_line.h"
#include "bench/measure.h"
#include "comm/network/link/network_mesh.h"

namespace tessera {

// all_gather, as it is and in int8, and reduce_scatter of each size between two network namespaces, in turn
// with iperf3 using 8 streams over the same link. Speeds are Gbit/s of payload on the link, both directions
// together; for iperf3 one direction, which here is no slower than both together (the processor is the
// limit). Both hosts share the processors, so rounding and summing compete with moving the data: a second
// line for reduce_scatter, `_bound`, compares with iperf3 followed by the same sums without a network.
// Results are verified first. Error(kBadConfig) without root, iproute2 or iperf3.
std::vector<BenchLine> run_network_bench(const std::vector<int64_t>& sizes_bytes,
                                         const NetworkOptions& options, const MeasureOptions& measure);

}  // namespace tessera
