// Cross-entropy of a chunk of logits, loss and gradient. Checked against the reference before it is timed.
// GB/s counts the logits read and the gradient written once, as if the passes over a row were free; `share`
// is its part of the copy bandwidth of memory measured in the same case (a chunk that stays in cache may
// exceed it). TESSERA_ISA selects the implementation.
#include <benchmark/benchmark.h>

#include <cmath>

#include "base/memory.h"
#include "base/rng.h"
#include "kernels/cross_entropy/cross_entropy_impl.h"
#include "platform/cpu.h"
#include "platform/peak.h"

namespace tessera {
namespace {

struct Case {
  int64_t R, V;
  DType dtype;  // of the gradient
};

ThreadPool& pool() {
  static ThreadPool instance;
  return instance;
}

struct Operands {
  explicit Operands(const Case& c)
      : logits(c.R * c.V * dtype_bytes(DType::kF32)),
        dlogits(c.R * c.V * dtype_bytes(c.dtype)),
        scratch(cross_entropy_scratch_bytes(c.R)) {
    const CounterRng rng(1, 0);
    for (int64_t i = 0; i < c.R * c.V; ++i) {
      logits.as<float>()[static_cast<size_t>(i)] = 4 * rng.normal(static_cast<uint64_t>(i % 65521));
    }
    for (int64_t r = 0; r < c.R; ++r) targets.push_back(static_cast<int32_t>(r * 31 % c.V));
  }

  LossSums run(const Case& c, const CrossEntropyKernels& kernels) {
    return cross_entropy_with(kernels, {logits.data(), DType::kF32, {c.R, c.V}}, targets, 0.0f, 1e-3f,
                              {dlogits.data(), c.dtype, {c.R, c.V}}, scratch.as<std::byte>(), pool());
  }

  PageBuffer logits, dlogits, scratch;
  std::vector<int32_t> targets;
};

// Losses against the float64 reference within the bound of the header, whose d is below 300 + ln V here.
bool verify(const Case& c, Operands& operands) {
  const Case few = {std::min<int64_t>(c.R, 16), c.V, c.dtype};
  const std::vector<int32_t> all_targets = operands.targets;
  operands.targets.resize(static_cast<size_t>(few.R));
  const double got = operands.run(few, cross_entropy_table().chosen()).loss_sum;
  const double expected = operands.run(few, cross_entropy_ref().front().kernels).loss_sum;
  operands.targets = all_targets;
  const double bound = static_cast<double>(few.R) * (300 + std::log(static_cast<double>(c.V))) * 0x1p-24;
  return std::abs(got - expected) <= bound;
}

void run_case(benchmark::State& state, const Case& c) {
  Operands operands(c);
  if (!verify(c, operands)) return state.SkipWithError("wrong result");
  const CrossEntropyKernels& kernels = cross_entropy_table().chosen();
  const double copy_before = measure_memory_bandwidth(pool(), 0.05).copy_gb_per_s;
  for (auto _ : state) benchmark::DoNotOptimize(operands.run(c, kernels));
  const double copy = (copy_before + measure_memory_bandwidth(pool(), 0.05).copy_gb_per_s) / 2;
  const double gigabytes = static_cast<double>(c.R * c.V * (4 + dtype_bytes(c.dtype))) * 1e-9;
  using benchmark::Counter;
  state.counters["GB/s"] = Counter(gigabytes, Counter::kIsIterationInvariantRate);
  state.counters["share"] = Counter(gigabytes / copy, Counter::kIsIterationInvariantRate);
  state.counters["rows/s"] = Counter(static_cast<double>(c.R), Counter::kIsIterationInvariantRate);
}

void register_cases() {
  const auto& chosen = cross_entropy_table().chosen_implementation();
  for (const Case& c : {Case{1024, 8192, DType::kBF16}, Case{1024, 8192, DType::kF32},
                        Case{256, 128256, DType::kBF16}, Case{256, 128256, DType::kF32}}) {
    const std::string name = fmt::format("cross_entropy/{}/{}({})/R:{}/V:{}", dtype_name(c.dtype),
                                         chosen.name, isa_name(chosen.isa), c.R, c.V);
    benchmark::RegisterBenchmark(name.c_str(), [c](benchmark::State& state) { run_case(state, c); })
        ->Unit(benchmark::kMillisecond)
        ->UseRealTime();
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::register_cases();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::AddCustomContext("processor", tessera::cpu_features().brand);
  benchmark::AddCustomContext("threads", std::to_string(tessera::pool().num_threads()));
  benchmark::AddCustomContext("compiler", __VERSION__);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
