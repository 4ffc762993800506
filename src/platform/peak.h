// What this machine reaches at best, measured now: the yardstick for every speed that is reported. Neighbours
// on a shared machine and thermal limits move these figures, so compare only what was measured in one run.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "platform/thread_pool.h"

namespace tessera {

struct ComputePeak {
  std::string instruction_set;  // "amx_bf16", "avx512_bf16", "avx512", "avx2"
  std::string arithmetic;       // "bf16 products, float32 sums" or "float32"
  double tflops = 0;            // 10^12 multiplications and additions per second, all threads together
};

struct MemoryBandwidth {
  double copy_gb_per_s = 0;  // memcpy: read + written bytes, 10^9 per second, all threads together
  double triad_gb_per_s =
      0;  // a = b + s c in float32 (STREAM, McCalpin): 3 arrays, without the write allocation
  int64_t array_bytes = 0;  // of each array, over all threads
};

// Loops of one multiply-add instruction on random values in registers (zeros use less power and run faster),
// on every thread at once, `seconds` for each instruction set that the machine and the kernel permit, best
// first.
std::vector<ComputePeak> measure_compute_peaks(ThreadPool& pool, double seconds = 0.2);

// On arrays several times the size of the last-level cache, as far as free memory allows.
MemoryBandwidth measure_memory_bandwidth(ThreadPool& pool, double seconds = 0.2);

}  // namespace tessera
