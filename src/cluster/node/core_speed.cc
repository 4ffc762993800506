#include "cluster/node/core_speed.h"

#include <fmt/format.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <exception>
#include <functional>
#include <map>
#include <system_error>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/float_types.h"
#include "base/median.h"
#include "base/memory.h"
#include "base/text.h"
#include "kernels/gemm/gemm.h"
#include "platform/cpu.h"
#include "platform/memory_info.h"
#include "platform/peak.h"

namespace tessera {
namespace {

// Fewer on a machine so busy that one takes far longer than it should.
constexpr int kRounds = 5;
// A throttled core runs at half its clock; hypervisors and turbo make 10 % of difference.
constexpr double kMinCoreShare = 0.7;
constexpr double kMinNodeShare = 0.7;
constexpr int64_t kPatternBytes = int64_t{8} << 20;
// The size of each of BandwidthMeter's three arrays, for every core.
constexpr int64_t kLeastArrayBytes = int64_t{4} << 20;
constexpr int64_t kMostArrayBytes = int64_t{32} << 20;

// Runs body(index, barrier) on a thread for each processor, pinned to it; rethrows the first exception. A
// thread that throws leaves the barrier.
void on_each(const std::vector<int>& cpus,
             const std::function<void(size_t index, std::barrier<>& barrier)>& body) {
  std::barrier<> barrier(std::ssize(cpus));
  std::vector<std::exception_ptr> errors(cpus.size());
  {
    std::vector<std::jthread> threads;
    const auto run = [&](size_t i) {
      pin_this_thread(cpus[i]);
      try {
        body(i, barrier);
      } catch (...) {
        errors[i] = std::current_exception();
      }
      barrier.arrive_and_drop();
    };
    try {
      for (size_t i = 0; i < cpus.size(); ++i) threads.emplace_back(run, i);
    } catch (const std::system_error& error) {
      const size_t num_started = threads.size();
      for (size_t i = num_started; i < cpus.size(); ++i) barrier.arrive_and_drop();
      fail(ExitCode::kBadConfig, "the system refuses thread {} of {}: {}", num_started + 1, cpus.size(),
           error.what());
    }
  }
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

// y = x w^T with remainders in every direction. Sums of integers stay below 2^24, so they are exact.
bool product_is_right(ThreadPool& pool) {
  constexpr int64_t T = 80, N = 72, K = 200;
  const auto value = [](int64_t row, int64_t column) {
    return static_cast<float>((row * 7 + column * 3) % 15 - 7);
  };
  std::vector<bf16> x_TK(T * K), w_NK(N * K);
  for (int64_t k = 0; k < K; ++k) {
    for (int64_t t = 0; t < T; ++t) x_TK[static_cast<size_t>(t * K + k)] = to_bf16(value(t, k));
    for (int64_t n = 0; n < N; ++n) w_NK[static_cast<size_t>(n * K + k)] = to_bf16(value(n + 1, k));
  }
  std::vector<float> y_TN(T * N, -1.0f);
  const PageBuffer scratch(std::max<int64_t>(
      1, gemm_scratch_bytes({.max_rows = T, .weight = {N, K}, .dtype = DType::kBF16, .num_threads = 1},
                            /*training=*/false)));
  gemm_forward(ConstTensorView(x_TK.data(), DType::kBF16, {T, K}),
               ConstTensorView(w_NK.data(), DType::kBF16, {N, K}), {},
               TensorView(y_TN.data(), DType::kF32, {T, N}), scratch.as<std::byte>(), pool);
  for (int64_t t = 0; t < T; ++t) {
    for (int64_t n = 0; n < N; ++n) {
      float expected = 0;
      for (int64_t k = 0; k < K; ++k) expected += value(t, k) * value(n + 1, k);
      if (y_TN[static_cast<size_t>(t * N + n)] != expected) return false;
    }
  }
  return true;
}

// Writes every word's own number, then its complement, and reads both back.
std::optional<int64_t> bad_byte_of(const PageBuffer& memory) {
  const std::span<uint64_t> words = memory.as<uint64_t>();
  for (const uint64_t flip : {uint64_t{0}, ~uint64_t{0}}) {
    for (size_t i = 0; i < words.size(); ++i) words[i] = (i * 0x9E3779B97F4A7C15u) ^ flip;
    asm volatile("" ::: "memory");
    for (size_t i = 0; i < words.size(); ++i) {
      if (words[i] != ((i * 0x9E3779B97F4A7C15u) ^ flip)) return static_cast<int64_t>(i * sizeof(uint64_t));
    }
  }
  return std::nullopt;
}

std::vector<int> first_threads() {
  std::vector<int> cpus;
  for (const std::vector<int>& core : cores_of(usable_cpus())) cpus.push_back(core.front());
  return cpus;
}

void measure_compute(CoreTrial& trial, double seconds, size_t at_once) {
  const Stopwatch stopwatch;
  std::vector<int> cpus;
  for (const CoreResult& core : trial.cores) cpus.push_back(core.cpu);
  for (size_t begin = 0; begin < cpus.size(); begin += at_once) {
    const size_t end = std::min(cpus.size(), begin + at_once);
    const double turn = seconds / kRounds / static_cast<double>((cpus.size() + at_once - 1) / at_once);
    on_each(
        {cpus.begin() + static_cast<std::ptrdiff_t>(begin), cpus.begin() + static_cast<std::ptrdiff_t>(end)},
        [&](size_t index, std::barrier<>& barrier) {
          CoreResult& core = trial.cores[begin + index];
          ThreadPool pool(1);
          core.product_is_right = product_is_right(pool);
          if (trial.instruction_set.empty()) return;
          ComputePeakMeter meter(pool, trial.instruction_set);
          for (int round = 0; round < kRounds && (round == 0 || stopwatch.seconds() < seconds); ++round) {
            barrier.arrive_and_wait();
            core.tflops = std::max(core.tflops, meter.measure(turn));
          }
        });
  }
}

void measure_memory(CoreTrial& trial, double seconds) {
  const Stopwatch stopwatch;
  std::vector<int> cpus;
  for (const CoreResult& core : trial.cores) cpus.push_back(core.cpu);
  const auto num_cores = static_cast<int64_t>(cpus.size());
  // Twice the last-level cache over all cores, so that it does not serve the arrays. Virtual machines report
  // the cache of the whole socket; to touch a multiple of that for the first time takes seconds.
  const int64_t cache_bytes = std::max<int64_t>(0, sysconf(_SC_LEVEL3_CACHE_SIZE));
  const int64_t bytes_of_core = std::clamp(2 * cache_bytes / num_cores, kLeastArrayBytes, kMostArrayBytes);
  const int64_t needed = 3 * bytes_of_core * num_cores + kPatternBytes * num_cores;
  if (memory_info().free_for_process_bytes / 2 < needed) {
    trial.why_no_bandwidth = fmt::format("needs {} of free memory twice", format_bytes(needed));
    return;
  }
  trial.pattern_bytes = kPatternBytes;
  on_each(cpus, [&](size_t index, std::barrier<>& barrier) {
    CoreResult& core = trial.cores[index];
    core.bad_byte = bad_byte_of(PageBuffer(kPatternBytes));
    ThreadPool pool(1);
    BandwidthMeter meter(pool, bytes_of_core);
    std::vector<double> rounds;
    for (int round = 0; round < kRounds && (round == 0 || stopwatch.seconds() < seconds); ++round) {
      barrier.arrive_and_wait();
      rounds.push_back(meter.measure(MemoryPattern::kUpdate, seconds / kRounds));
    }
    core.gb_per_s = median(std::move(rounds));
  });
}

}  // namespace

CoreTrial measure_cores(double seconds) {
  CoreTrial trial;
  const std::vector<std::string> sets = ComputePeakMeter::instruction_sets();
  if (!sets.empty()) trial.instruction_set = sets.front();
  for (const int cpu : first_threads()) trial.cores.push_back({.cpu = cpu});
  const CpuLimits limits = cpu_limits();
  const size_t at_once =
      std::min(trial.cores.size(), static_cast<size_t>(std::max(1.0, limits.quota.value_or(1e9))));
  measure_compute(trial, seconds / 2, at_once);
  if (at_once < trial.cores.size()) {
    trial.why_no_bandwidth =
        fmt::format("the CPU limit allows {} of {} cores at a time", at_once, trial.cores.size());
  } else {
    measure_memory(trial, seconds / 2);
  }
  return trial;
}

Check check_products(const CoreTrial& trial) {
  std::vector<int> wrong;
  for (const CoreResult& core : trial.cores) {
    if (!core.product_is_right) wrong.push_back(core.cpu);
  }
  return at_most(
      "product", static_cast<double>(wrong.size()), 0, "cores",
      wrong.empty()
          ? fmt::format("the matrix product is exact on {}", count_of(std::ssize(trial.cores), "core"))
          : fmt::format("wrong matrix products on processor {}: the hardware is damaged; "
                        "replace the node",
                        format_cpu_list(wrong)));
}

Check check_memory_pattern(const CoreTrial& trial) {
  if (trial.pattern_bytes == 0) return skipped("memory_pattern", trial.why_no_bandwidth);
  for (const CoreResult& core : trial.cores) {
    if (!core.bad_byte) continue;
    return at_most(
        "memory_pattern", 1, 0, "cores",
        fmt::format("memory of processor {} does not keep what is written (byte {} of {}): replace the node",
                    core.cpu, *core.bad_byte, format_bytes(trial.pattern_bytes)));
  }
  return at_most(
      "memory_pattern", 0, 0, "cores",
      fmt::format("{} keep what is written", format_bytes(trial.pattern_bytes * std::ssize(trial.cores))));
}

Check check_slow_cores(const CoreTrial& trial) {
  if (trial.instruction_set.empty()) return skipped("slow_cores", "no instruction set that can be measured");
  if (trial.cores.size() < 2) return skipped("slow_cores", "needs at least two cores");
  std::vector<double> speeds;
  for (const CoreResult& core : trial.cores) speeds.push_back(core.tflops);
  const double typical = median(speeds);
  const auto worst = std::ranges::min_element(trial.cores, {}, &CoreResult::tflops);
  std::vector<int> slow;
  for (const CoreResult& core : trial.cores) {
    if (core.tflops < kMinCoreShare * typical) slow.push_back(core.cpu);
  }
  const std::string figures = fmt::format("processor {} reaches {:.3g} TFLOPS, the median core {:.3g}",
                                          worst->cpu, worst->tflops, typical);
  return at_least("slow_cores", worst->tflops / typical, kMinCoreShare, "share of the median core",
                  slow.empty() ? figures
                               : fmt::format("{} ({} slow: {}): throttled, shared with others, or damaged",
                                             figures, slow.size(), format_cpu_list(slow)));
}

Check check_slow_numa_nodes(const CoreTrial& trial, const std::vector<NumaNode>& nodes) {
  if (!trial.why_no_bandwidth.empty()) return skipped("slow_numa_nodes", trial.why_no_bandwidth);
  std::map<int, std::pair<double, int64_t>> by_node;  // GB/s and cores
  for (const CoreResult& core : trial.cores) {
    for (const NumaNode& node : nodes) {
      if (std::ranges::find(node.cpus, core.cpu) == node.cpus.end()) continue;
      by_node[node.id].first += core.gb_per_s;
      by_node[node.id].second += 1;
    }
  }
  if (by_node.size() < 2) return skipped("slow_numa_nodes", "needs cores on at least two NUMA nodes");
  std::vector<double> per_core;
  for (const auto& [id, sum] : by_node) per_core.push_back(sum.first / static_cast<double>(sum.second));
  const double typical = median(per_core);
  const auto worst = std::ranges::min_element(by_node, {}, [](const auto& entry) {
    return entry.second.first / static_cast<double>(entry.second.second);
  });
  const double share = worst->second.first / static_cast<double>(worst->second.second) / typical;
  return at_least(
      "slow_numa_nodes", share, kMinNodeShare, "share of the median node",
      fmt::format("node {} moves {:.3g} GB/s with {}, {:.2f} of what a core of the median node does{}",
                  worst->first, worst->second.first, count_of(worst->second.second, "core"), share,
                  share < kMinNodeShare ? ": a memory channel is missing or slow; replace the node" : ""));
}

double tflops_of(const CoreTrial& trial) {
  double sum = 0;
  for (const CoreResult& core : trial.cores) sum += core.tflops;
  return sum;
}

double gb_per_s_of(const CoreTrial& trial) {
  double sum = 0;
  for (const CoreResult& core : trial.cores) sum += core.gb_per_s;
  return sum;
}

}  // namespace tessera
