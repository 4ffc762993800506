// The best this machine achieves, measured now: the yardstick for every reported speed. Neighbours on a
// shared machine and thermal limits move these figures, so compare only what was measured in one run.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory.h"
#include "platform/thread_pool.h"

namespace tessera {

// Measures one instruction set repeatedly, so that a benchmark can alternate between a kernel and the peak.
//
//   ComputePeakMeter peak(pool, "amx_bf16");
//   for (...) { ratios.push_back(measure_kernel() / peak.measure(0.01)); }
class ComputePeakMeter {
 public:
  // The subset of "amx_bf16", "avx512_bf16", "avx512", "avx2" usable on this machine and kernel, best first.
  static std::vector<std::string> instruction_sets();

  // Error(kBadConfig) if the machine lacks the instruction set. The pool must outlive this.
  ComputePeakMeter(ThreadPool& pool, std::string_view instruction_set);

  std::string_view instruction_set() const;
  std::string_view arithmetic() const;  // "bf16 products, float32 sums" or "float32"

  // 10^12 multiplications and additions per second over all threads: every thread loops for `seconds` over
  // one multiply-add instruction on random register values (zeros use less power and run faster). Needs at
  // least a millisecond to be meaningful. Allocates nothing.
  double measure(double seconds);

 private:
  ThreadPool* pool_;
  size_t row_;  // in the table in peak.cc
};

// The memory access pattern. Bytes are counted as in STREAM (McCalpin): those the program reads and writes,
// not the lines that a regular store reads before writing.
enum class MemoryPattern {
  kCopy,           // memcpy, piece by piece
  kStreamingCopy,  // a copy whose stores bypass the caches (non-temporal)
  kUpdate,         // a = s a in place, as an optimizer does: every line read is also written
  kTriad,          // a = b + s c in float32
};

// Three arrays per thread, several times the size of the last-level cache if free memory allows, first
// written by the thread that will walk them.
class BandwidthMeter {
 public:
  // `array_bytes` per array over all threads; 0 = twice the last-level cache. The pool must outlive this.
  explicit BandwidthMeter(ThreadPool& pool, int64_t array_bytes = 0);

  int64_t array_bytes() const { return part_bytes_ * pool_->num_threads(); }

  // 10^9 bytes per second, read + written, over all threads. Resumes where the last measurement of the
  // pattern stopped, so that short ones do not find their data in the cache. Allocates nothing.
  double measure(MemoryPattern pattern, double seconds);

  // The yardstick: the best of copy, streaming copy and update, each for a third of `seconds`.
  double measure_best(double seconds);

 private:
  ThreadPool* pool_;
  int64_t part_bytes_;  // per array and thread
  std::vector<PageBuffer> buffers_;
  std::vector<int64_t> next_piece_;
};

struct ComputePeak {
  std::string instruction_set;
  std::string arithmetic;
  double tflops = 0;
};

struct MemoryBandwidth {
  double copy_gb_per_s = 0;
  double streaming_copy_gb_per_s = 0;
  double update_gb_per_s = 0;
  double triad_gb_per_s = 0;
  int64_t array_bytes = 0;  // per array, over all threads

  double best_gb_per_s() const;  // best of copy, streaming copy and update
};

// Every instruction set once, best first, `seconds` for each.
std::vector<ComputePeak> measure_compute_peaks(ThreadPool& pool, double seconds = 0.2);

// Every pattern once, `seconds` for each.
MemoryBandwidth measure_memory_bandwidth(ThreadPool& pool, double seconds = 0.2);

// Seconds of a parallel loop that does nothing: the median of a few hundred.
double measure_empty_loop(ThreadPool& pool);

}  // namespace tessera
