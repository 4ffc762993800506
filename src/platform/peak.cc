#include "platform/peak.h"

#include <immintrin.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/float_types.h"
#include "base/median.h"
#include "base/memory.h"
#include "base/rng.h"
#include "platform/cpu.h"
#include "platform/instruction_trial.h"
#include "platform/memory_info.h"

namespace tessera {
namespace {

constexpr int64_t kInstructionsPerCall = 1 << 14;  // a few microseconds between clock reads

// 512 random bf16 values in [-1, 1), enough for one tile; every vector loop reads the first of them.
struct RandomOperands {
  alignas(64) std::array<bf16, 512> values;
  RandomOperands() {
    const CounterRng rng(1, 0);
    for (size_t i = 0; i < values.size(); ++i) values[i] = to_bf16(2 * rng.uniform(i) - 1);
  }
};

// Runs kInstructionsPerCall multiply-add instructions. An empty asm keeps the sums alive without storing
// them.
using Loop = void (*)(const RandomOperands&);

// 2 x 2 accumulator tiles from two A and two B tiles: no instruction waits for its predecessor.
__attribute__((target("amx-tile,amx-bf16"))) void amx_loop(const RandomOperands& operands) {
  asm volatile(""
               :
               : "m"(kTileConfig));  // as far as the compiler knows, GCC 12's intrinsic reads only 8 bytes
  _tile_loadconfig(&kTileConfig);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, operands.values.data(), 64);
  _tile_loadd(5, operands.values.data(), 64);
  _tile_loadd(6, operands.values.data(), 64);
  _tile_loadd(7, operands.values.data(), 64);
  for (int64_t i = 0; i < kInstructionsPerCall; i += 4) {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

constexpr size_t kAccumulators = 16;  // two pipes with a latency of up to 6 cycles need 12

// Makes the compiler assume that all memory is read here.
void use_memory() { asm volatile("" ::: "memory"); }

__attribute__((target("avx512f,avx512bw,avx512vl,avx512bf16"))) void avx512_bf16_loop(
    const RandomOperands& operands) {
  const auto a = (__m512bh)_mm512_loadu_si512(operands.values.data());
  const auto b = (__m512bh)_mm512_loadu_si512(operands.values.data() + 32);
  __m512 sums[kAccumulators];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < kInstructionsPerCall; i += kAccumulators) {
#pragma GCC unroll 16
    for (size_t k = 0; k < kAccumulators; ++k) sums[k] = _mm512_dpbf16_ps(sums[k], a, b);
  }
  for (__m512& sum : sums) asm volatile("" : "+v"(sum));
}

__attribute__((target("avx512f"))) void avx512_loop(const RandomOperands& operands) {
  const __m512 a = _mm512_loadu_ps(operands.values.data());
  const __m512 b = _mm512_loadu_ps(operands.values.data() + 32);
  __m512 sums[kAccumulators];
  for (__m512& sum : sums) sum = _mm512_setzero_ps();
  for (int64_t i = 0; i < kInstructionsPerCall; i += kAccumulators) {
#pragma GCC unroll 16
    for (size_t k = 0; k < kAccumulators; ++k) sums[k] = _mm512_fmadd_ps(a, b, sums[k]);
  }
  for (__m512& sum : sums) asm volatile("" : "+v"(sum));
}

constexpr size_t kAvx2Accumulators = 12;  // of 16 registers; two of the others hold the operands

__attribute__((target("avx2,fma"))) void avx2_loop(const RandomOperands& operands) {
  const auto* floats = reinterpret_cast<const float*>(operands.values.data());
  const __m256 a = _mm256_loadu_ps(floats);
  const __m256 b = _mm256_loadu_ps(floats + 8);
  __m256 sums[kAvx2Accumulators];
  for (__m256& sum : sums) sum = _mm256_setzero_ps();
  for (int64_t i = 0; i + static_cast<int64_t>(kAvx2Accumulators) <= kInstructionsPerCall;
       i += kAvx2Accumulators) {
#pragma GCC unroll 12
    for (size_t k = 0; k < kAvx2Accumulators; ++k) sums[k] = _mm256_fmadd_ps(a, b, sums[k]);
  }
  for (__m256& sum : sums) asm volatile("" : "+v"(sum));
}

// Calls of `body` per second over all threads, which start together and run until the same moment. Time runs
// from the first start to the last end, so that a thread that came late, or ran two indices in sequence, does
// not count as having run alongside the others.
template <typename Body>
double calls_per_second(ThreadPool& pool, double seconds, const Body& body) {
  constexpr double kLongestWaitForOthers = 0.02;
  const int64_t num_threads = pool.num_threads();
  std::atomic<int64_t> num_ready = 0;
  std::atomic<int64_t> num_calls = 0;
  std::atomic<double> first_begin = 0;
  std::atomic<double> last_end = 0;
  const Stopwatch stopwatch;
  pool.parallel_for(num_threads, [&](int64_t index) {
    body(index);  // wide units take some microseconds to power up
    num_ready.fetch_add(1);
    const double arrival = stopwatch.seconds();
    while (num_ready.load() < num_threads && stopwatch.seconds() - arrival < kLongestWaitForOthers) {
      std::this_thread::yield();
    }
    const double begin = stopwatch.seconds();
    double expected = 0;
    first_begin.compare_exchange_strong(expected, begin);
    double end = begin;
    int64_t calls = 0;
    do {
      body(index);
      ++calls;
      end = stopwatch.seconds();
    } while (end < begin + seconds);
    num_calls.fetch_add(calls);
    for (double last = last_end.load(); last < end && !last_end.compare_exchange_weak(last, end);) {
    }
  });
  return static_cast<double>(num_calls.load()) / (last_end.load() - first_begin.load());
}

struct PeakLoop {
  const char* instruction_set;
  const char* arithmetic;
  bool (*usable)();
  Loop loop;
  double flops_per_call;
};

constexpr const char* kBf16Arithmetic = "bf16 products, float32 sums";
constexpr int64_t kAvx2InstructionsPerCall = kInstructionsPerCall / kAvx2Accumulators * kAvx2Accumulators;

constexpr std::array<PeakLoop, 4> kPeakLoops = {{
    {"amx_bf16", kBf16Arithmetic, [] { return request_amx_permission().granted; }, amx_loop,
     2.0 * 16 * 16 * 32 * kInstructionsPerCall},
    {"avx512_bf16", kBf16Arithmetic, [] { return cpu_features().avx512_bf16; }, avx512_bf16_loop,
     2.0 * 32 * kInstructionsPerCall},
    {"avx512", "float32", [] { return cpu_features().avx512; }, avx512_loop, 2.0 * 16 * kInstructionsPerCall},
    {"avx2", "float32", [] { return cpu_features().avx2; }, avx2_loop, 2.0 * 8 * kAvx2InstructionsPerCall},
}};

size_t peak_loop_row(std::string_view instruction_set) {
  for (size_t row = 0; row < kPeakLoops.size(); ++row) {
    if (kPeakLoops[row].instruction_set == instruction_set && kPeakLoops[row].usable()) return row;
  }
  fail(ExitCode::kBadConfig, "cannot measure the peak of '{}' here, only of: {}", instruction_set,
       fmt::join(ComputePeakMeter::instruction_sets(), ", "));
}

// Several times the L2 cache, a fraction of a millisecond: the work between clock reads.
constexpr int64_t kPieceBytes = int64_t{4} << 20;

// Arrays that begin at the same page offset slow each other down: loads falsely appear to depend on stores.
constexpr int64_t kStaggerBytes = 5 * 4096 + 1024;

// Twice the last-level cache for each of three arrays, but at most 3/8 of the free memory in total.
int64_t default_array_bytes() {
  constexpr int64_t kFallbackCacheBytes = int64_t{32} << 20;
  const int64_t cache_bytes = std::max<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), kFallbackCacheBytes);
  return std::min(2 * cache_bytes, memory_info().free_for_process_bytes / 8);
}

void streaming_copy(float* destination, const float* source, int64_t num_bytes) {
  const auto* from = reinterpret_cast<const __m128i*>(source);
  auto* to = reinterpret_cast<__m128i*>(destination);
  for (int64_t i = 0; i < num_bytes / 16; i += 4) {  // a line at a time
    const __m128i a = _mm_load_si128(from + i);
    const __m128i b = _mm_load_si128(from + i + 1);
    const __m128i c = _mm_load_si128(from + i + 2);
    const __m128i d = _mm_load_si128(from + i + 3);
    _mm_stream_si128(to + i, a);
    _mm_stream_si128(to + i + 1, b);
    _mm_stream_si128(to + i + 2, c);
    _mm_stream_si128(to + i + 3, d);
  }
  _mm_sfence();
}

// Walks one piece of the arrays a, b, c.
void walk_piece(MemoryPattern pattern, float* a, const float* b, const float* c) {
  constexpr int64_t kFloats = kPieceBytes / static_cast<int64_t>(sizeof(float));
  switch (pattern) {
    case MemoryPattern::kCopy:
      std::memcpy(a, b, static_cast<size_t>(kPieceBytes));
      break;
    case MemoryPattern::kStreamingCopy:
      streaming_copy(a, b, kPieceBytes);
      break;
    case MemoryPattern::kUpdate:
      for (int64_t i = 0; i < kFloats; ++i) a[i] *= -1.0f;
      break;
    case MemoryPattern::kTriad:
      for (int64_t i = 0; i < kFloats; ++i) a[i] = b[i] + 3.0f * c[i];
      break;
  }
  use_memory();
}

}  // namespace

std::vector<std::string> ComputePeakMeter::instruction_sets() {
  std::vector<std::string> names;
  for (const PeakLoop& row : kPeakLoops) {
    if (row.usable()) names.emplace_back(row.instruction_set);
  }
  return names;
}

ComputePeakMeter::ComputePeakMeter(ThreadPool& pool, std::string_view instruction_set)
    : pool_(&pool), row_(peak_loop_row(instruction_set)) {}

std::string_view ComputePeakMeter::instruction_set() const { return kPeakLoops[row_].instruction_set; }
std::string_view ComputePeakMeter::arithmetic() const { return kPeakLoops[row_].arithmetic; }

double ComputePeakMeter::measure(double seconds) {
  static const RandomOperands operands;
  const PeakLoop& row = kPeakLoops[row_];
  return calls_per_second(*pool_, seconds, [&](int64_t) { row.loop(operands); }) * row.flops_per_call * 1e-12;
}

BandwidthMeter::BandwidthMeter(ThreadPool& pool, int64_t array_bytes)
    : pool_(&pool),
      part_bytes_(std::max(
          kPieceBytes, round_up((array_bytes == 0 ? default_array_bytes() : array_bytes) / pool.num_threads(),
                                kPieceBytes))),
      next_piece_(static_cast<size_t>(pool.num_threads())) {
  for (int64_t i = 0; i < pool.num_threads(); ++i) buffers_.emplace_back(3 * part_bytes_ + 2 * kStaggerBytes);
  // Untouched pages all map to the same zero page, which would stay in cache.
  pool.parallel_for(pool.num_threads(), [&](int64_t index) {
    const std::span<float> floats = buffers_[static_cast<size_t>(index)].as<float>();
    std::fill(floats.begin(), floats.end(), 1.5f);
  });
}

double BandwidthMeter::measure(MemoryPattern pattern, double seconds) {
  const int64_t num_pieces = part_bytes_ / kPieceBytes;
  const double pieces = calls_per_second(*pool_, seconds, [&](int64_t index) {
    int64_t& piece = next_piece_[static_cast<size_t>(index)];
    std::byte* a = buffers_[static_cast<size_t>(index)].data() + piece * kPieceBytes;
    walk_piece(pattern, reinterpret_cast<float*>(a),
               reinterpret_cast<const float*>(a + part_bytes_ + kStaggerBytes),
               reinterpret_cast<const float*>(a + 2 * (part_bytes_ + kStaggerBytes)));
    piece = (piece + 1) % num_pieces;
  });
  const double arrays = pattern == MemoryPattern::kTriad ? 3 : 2;
  return pieces * arrays * static_cast<double>(kPieceBytes) * 1e-9;
}

double BandwidthMeter::measure_best(double seconds) {
  return std::max({measure(MemoryPattern::kCopy, seconds / 3),
                   measure(MemoryPattern::kStreamingCopy, seconds / 3),
                   measure(MemoryPattern::kUpdate, seconds / 3)});
}

double MemoryBandwidth::best_gb_per_s() const {
  return std::max({copy_gb_per_s, streaming_copy_gb_per_s, update_gb_per_s});
}

std::vector<ComputePeak> measure_compute_peaks(ThreadPool& pool, double seconds) {
  std::vector<ComputePeak> peaks;
  for (const std::string& name : ComputePeakMeter::instruction_sets()) {
    ComputePeakMeter meter(pool, name);
    peaks.push_back({name, std::string(meter.arithmetic()), meter.measure(seconds)});
  }
  return peaks;
}

MemoryBandwidth measure_memory_bandwidth(ThreadPool& pool, double seconds) {
  BandwidthMeter meter(pool);
  MemoryBandwidth result;
  result.array_bytes = meter.array_bytes();
  result.copy_gb_per_s = meter.measure(MemoryPattern::kCopy, seconds);
  result.streaming_copy_gb_per_s = meter.measure(MemoryPattern::kStreamingCopy, seconds);
  result.update_gb_per_s = meter.measure(MemoryPattern::kUpdate, seconds);
  result.triad_gb_per_s = meter.measure(MemoryPattern::kTriad, seconds);
  return result;
}

double measure_empty_loop(ThreadPool& pool) {
  std::vector<double> seconds(301);
  for (double& each : seconds) {
    const Stopwatch stopwatch;
    pool.parallel_for(pool.num_threads(), [](int64_t) {});
    each = stopwatch.seconds();
  }
  return median(std::move(seconds));
}

}  // namespace tessera
