#include "platform/peak.h"

#include <immintrin.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <numeric>

#include "base/float_types.h"
#include "base/memory.h"
#include "base/rng.h"
#include "platform/cpu.h"
#include "platform/memory_info.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

constexpr int64_t kInstructionsPerCall = 1 << 14;  // a few microseconds between two looks at the clock

// 512 random bf16 values in [-1, 1), enough for one tile; every vector loop reads the beginning of it.
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
  struct alignas(64) TileConfig {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    std::array<uint8_t, 14> reserved = {};
    std::array<uint16_t, 16> row_bytes = {};
    std::array<uint8_t, 16> rows = {};
  } config;
  for (size_t tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = 64;
    config.rows[tile] = 16;
  }
  asm volatile("" : : "m"(config));  // GCC 12's intrinsic reads 8 bytes only, as far as the compiler knows
  _tile_loadconfig(&config);
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

// Makes the compiler believe that all memory is read here.
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

constexpr size_t kAvx2Accumulators = 12;  // of 16 registers, two hold the operands

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

// Sum over the threads of each one's rate: calls of `body` per second, every thread for `seconds`.
template <typename Body>
double calls_per_second(ThreadPool& pool, double seconds, const Body& body) {
  std::vector<double> rates(static_cast<size_t>(pool.num_threads()));
  pool.parallel_for(pool.num_threads(), [&](int64_t index) {
    body(index);  // warm-up: wide units need some microseconds to power up, pages to appear
    int64_t calls = 0;
    const Clock::time_point begin = Clock::now();
    double elapsed = 0;
    do {
      body(index);
      ++calls;
      elapsed = seconds_since(begin);
    } while (elapsed < seconds);
    rates[static_cast<size_t>(index)] = static_cast<double>(calls) / elapsed;
  });
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

}  // namespace

std::vector<ComputePeak> measure_compute_peaks(ThreadPool& pool, double seconds) {
  struct Candidate {
    bool usable;
    const char* name;
    const char* arithmetic;
    Loop loop;
    int64_t instructions_per_call;
    double flops_per_instruction;
  };
  constexpr const char* kBf16 = "bf16 products, float32 sums";
  constexpr int64_t kAvx2PerCall = kInstructionsPerCall / kAvx2Accumulators * kAvx2Accumulators;
  const CpuFeatures& cpu = cpu_features();
  const std::array<Candidate, 4> candidates = {{
      {request_amx_permission().granted, "amx_bf16", kBf16, amx_loop, kInstructionsPerCall,
       2.0 * 16 * 16 * 32},
      {cpu.avx512_bf16, "avx512_bf16", kBf16, avx512_bf16_loop, kInstructionsPerCall, 2.0 * 32},
      {cpu.avx512, "avx512", "float32", avx512_loop, kInstructionsPerCall, 2.0 * 16},
      {cpu.avx2, "avx2", "float32", avx2_loop, kAvx2PerCall, 2.0 * 8},
  }};
  const RandomOperands operands;
  std::vector<ComputePeak> peaks;
  for (const Candidate& candidate : candidates) {
    if (!candidate.usable) continue;
    const double calls = calls_per_second(pool, seconds, [&](int64_t) { candidate.loop(operands); });
    const double flops_per_call =
        candidate.flops_per_instruction * static_cast<double>(candidate.instructions_per_call);
    peaks.push_back({candidate.name, candidate.arithmetic, calls * flops_per_call * 1e-12});
  }
  return peaks;
}

MemoryBandwidth measure_memory_bandwidth(ThreadPool& pool, double seconds) {
  constexpr int64_t kFallbackCacheBytes = int64_t{32} << 20;
  constexpr int64_t kMinPartBytes = int64_t{1} << 20;
  const int64_t cache_bytes = std::max<int64_t>(sysconf(_SC_LEVEL3_CACHE_SIZE), kFallbackCacheBytes);
  const int64_t affordable = memory_info().free_for_process_bytes / 8;
  const int64_t num_threads = pool.num_threads();
  const int64_t part_bytes =
      std::max(round_up(std::min(2 * cache_bytes, affordable) / num_threads, 4096), kMinPartBytes);
  const int64_t part_floats = part_bytes / static_cast<int64_t>(sizeof(float));

  // Three arrays per index.
  std::vector<PageBuffer> buffers;
  for (int64_t i = 0; i < num_threads; ++i) buffers.emplace_back(3 * part_bytes);
  const auto array = [&](int64_t index, int64_t which) {
    return buffers[static_cast<size_t>(index)].as<float>().data() + which * part_floats;
  };

  // Written before they are read: untouched pages all read the system's one page of zeros, from cache.
  pool.parallel_for(num_threads, [&](int64_t index) {
    std::fill_n(array(index, 0), 3 * part_floats, static_cast<float>(index + 1));
  });

  MemoryBandwidth result;
  result.array_bytes = part_bytes * num_threads;
  const double copies = calls_per_second(pool, seconds, [&](int64_t index) {
    std::memcpy(array(index, 0), array(index, 1), static_cast<size_t>(part_bytes));
    use_memory();
  });
  const double triads = calls_per_second(pool, seconds, [&](int64_t index) {
    float* a = array(index, 0);
    const float* b = array(index, 1);
    const float* c = array(index, 2);
    for (int64_t i = 0; i < part_floats; ++i) a[i] = b[i] + 3.0f * c[i];
    use_memory();
  });
  result.copy_gb_per_s = copies * 2 * static_cast<double>(part_bytes) * 1e-9;
  result.triad_gb_per_s = triads * 3 * static_cast<double>(part_bytes) * 1e-9;
  return result;
}

}  // namespace tessera
