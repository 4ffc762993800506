// For the benchmarks of vector kernels: the pool, random arrays, and yardsticks measured in the same run,
// right before and after a case, because shared machines are noisy.
#pragma once

#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "base/memory.h"
#include "base/rng.h"
#include "kernels/dispatch.h"
#include "platform/cpu.h"
#include "platform/peak.h"
#include "tensor/tensor_view.h"

namespace tessera {

inline ThreadPool& bench_pool() {
  static ThreadPool pool;
  return pool;
}

// 10^9 float32 operations per second of the best vector instruction set that TESSERA_ISA allows.
inline double float32_peak_gflops() {
  for (const ComputePeak& peak : measure_compute_peaks(bench_pool(), 0.05)) {
    const bool allowed = parse_isa(peak.instruction_set).value_or(Isa::kRef) <= isa_limit();
    if (allowed && peak.arithmetic == "float32") return peak.tflops * 1e3;
  }
  return 0;
}

inline double copy_gb_per_s() { return measure_memory_bandwidth(bench_pool(), 0.05).copy_gb_per_s; }

// Runs the case between two measurements of its yardstick. `amount` is 10^9 operations or bytes of one
// iteration; reported as `unit` and as the share of the yardstick.
template <typename Body>
void run_against(benchmark::State& state, double (*yardstick)(), double amount, const std::string& unit,
                 const Body& body) {
  using benchmark::Counter;
  const double before = yardstick();
  for (auto _ : state) body();
  const double best = (before + yardstick()) / 2;
  state.counters[unit] = Counter(amount, Counter::kIsIterationInvariantRate);
  state.counters["share"] = Counter(amount / best, Counter::kIsIterationInvariantRate);
}

// An array of standard normal values (a short sequence repeated).
class BenchTensor {
 public:
  BenchTensor(DType dtype, Shape shape, uint64_t seed)
      : buffer_(shape.num_elements() * dtype_bytes(dtype)), view_(buffer_.data(), dtype, shape) {
    const CounterRng rng(seed, 0);
    for (int64_t i = 0; i < shape.num_elements(); ++i) {
      const float value = rng.normal(static_cast<uint64_t>(i % 65521));
      if (dtype == DType::kBF16) {
        view_.as<bf16>()[i] = to_bf16(value);
      } else {
        view_.as<float>()[i] = value;
      }
    }
  }
  TensorView view() const { return view_; }
  double operator[](int64_t i) const {
    return view_.dtype() == DType::kBF16 ? to_float(view_.as<bf16>()[i]) : view_.as<float>()[i];
  }

 private:
  PageBuffer buffer_;
  TensorView view_;
};

// The largest difference of two tensors over the largest magnitude of the second: a coarse check before
// timing; the tests hold the derived bounds.
inline double relative_difference(const BenchTensor& got, const BenchTensor& expected) {
  double difference = 0, largest = 0;
  for (int64_t i = 0; i < got.view().num_elements(); ++i) {
    const double distance = got[i] - expected[i];
    if (!(std::abs(distance) <= difference)) difference = std::abs(distance);
    largest = std::max(largest, std::abs(expected[i]));
  }
  return difference / largest;
}

inline double tolerance(DType dtype) { return dtype == DType::kBF16 ? 0x1p-7 : 1e-4; }

inline void describe_machine(const std::string& implementation) {
  benchmark::AddCustomContext("cpu", cpu_features().brand);
  benchmark::AddCustomContext("threads", std::to_string(bench_pool().num_threads()));
  benchmark::AddCustomContext("implementation", implementation);
  benchmark::AddCustomContext("compiler", __VERSION__);
}

template <typename Kernels>
std::string chosen_name(const DispatchTable<Kernels>& table) {
  const auto& chosen = table.chosen_implementation();
  return fmt::format("{} ({})", chosen.name, isa_name(chosen.isa));
}

}  // namespace tessera
