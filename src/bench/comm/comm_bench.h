// Speed of collectives among ranks on one node, in turn with Gloo and MPI.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bench/bench_line.h"
#include "bench/measure.h"
#include "bench/step/other_program.h"

namespace tessera {

// The sum of one float32 buffer per rank, which every rank can read in float32 afterwards: the work of
// reduce_scatter and all_gather. Verifies every element on every rank of each side, then measures. Counts the
// bytes that shared memory must read and write once: (num_ranks + 1) buffers.
BenchLine run_node_sum_case(int num_ranks, int64_t buffer_bytes, OtherProgram& ours,
                            const std::vector<OtherProgram*>& others, const MeasureOptions& options,
                            BandwidthMeter& bandwidth);

}  // namespace tessera
