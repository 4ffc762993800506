// Measures every core of this machine by itself: wrong results, slow cores and slow NUMA nodes do not show up
// otherwise.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/check.h"
#include "platform/topology.h"

namespace tessera {

struct CoreResult {
  int cpu = 0;                           // the first hardware thread of the core
  double tflops = 0;                     // best of several rounds, all cores working at the same time
  double gb_per_s = 0;                   // median of several rounds, likewise; 0 = not measured
  bool product_is_right = true;          // of the best matrix product, on integers whose result is exact
  std::optional<int64_t> bad_byte = {};  // of its test memory: where it did not keep what was written
};

struct CoreTrial {
  std::string instruction_set;  // of `tflops`; "" = this machine has none that can be measured
  std::vector<CoreResult> cores;
  int64_t pattern_bytes = 0;     // memory tested on each core
  std::string why_no_bandwidth;  // "" = measured
};

// Takes about `seconds`. One thread for each core in the affinity mask; where a CPU quota allows fewer at a
// time, they take turns and memory is not measured. Error(kBadConfig) if the system refuses threads or
// pinning.
CoreTrial measure_cores(double seconds);

// Names of the checks: product, slow_cores, slow_numa_nodes, memory_pattern.
Check check_products(const CoreTrial& trial);
Check check_memory_pattern(const CoreTrial& trial);
// Fails if a core is slower than this share of the median core.
Check check_slow_cores(const CoreTrial& trial);
// Like check_slow_cores(), for the bandwidth of NUMA nodes with several cores in the trial.
Check check_slow_numa_nodes(const CoreTrial& trial, const std::vector<NumaNode>& nodes);

// Sums over cores.
double tflops_of(const CoreTrial& trial);
double gb_per_s_of(const CoreTrial& trial);

}  // namespace tessera
