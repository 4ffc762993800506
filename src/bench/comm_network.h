// Collectives between two hosts against what TCP carries between them.
#pragma once

#include <cstdint>
#include <vector>

#include "bench/bench_line.h"
#include "bench/measure.h"

namespace tessera {

struct NetworkBenchOptions {
  std::vector<int64_t> sizes_bytes = {int64_t{32} << 20, int64_t{512} << 20};  // of the buffer, as it travels
  int connections = 4;
};

// all_gather and reduce_scatter of each size between two network namespaces, in turn with iperf3 of 8 streams
// over the same cable. Speeds are Gbit/s of payload on the cable, both directions together: of iperf3 those
// of one direction, which here is no less than of both together (the processor is what limits). Both hosts
// share the processors, so that rounding and summing take from what moves the data: a second line of
// reduce_scatter, `_bound`, compares with iperf3 and the same sums without a network, one after the
// other. Results are verified first. Error(kBadConfig) without root, iproute2 or iperf3.
std::vector<BenchLine> run_network_bench(const NetworkBenchOptions& options, const MeasureOptions& measure);

}  // namespace tessera
