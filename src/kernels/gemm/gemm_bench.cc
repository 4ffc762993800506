// The products of linear layers: a 30 M parameter model (D 512, F 1536, V 8192) and Llama-3-8B. Each case is
// checked against float64 on a sample of elements before it is timed. Weights are cold: every call takes the
// next of several copies. `share` is the part of the peak measured right before and after the case, because
// shared machines are noisy. TESSERA_ISA selects the implementation.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cmath>

#include "base/memory.h"
#include "base/rng.h"
#include "kernels/gemm/gemm_impl.h"
#include "platform/cpu.h"
#include "platform/peak.h"

namespace tessera {
namespace {

enum class Product { kForward, kBackwardInput, kBackwardWeight };
constexpr const char* kProductNames[] = {"forward", "backward_input", "backward_weight"};

struct Case {
  Product product;
  DType dtype;
  int64_t T, N, K;
};

ThreadPool& pool() {
  static ThreadPool instance;
  return instance;
}

// 10^9 operations per second of the best instruction set for this dtype.
double peak_gflops(DType dtype) {
  for (const ComputePeak& peak : measure_compute_peaks(pool(), 0.05)) {
    const bool bf16_peak = peak.arithmetic != "float32";
    const bool allowed = parse_isa(peak.instruction_set).value_or(Isa::kRef) <= isa_limit();
    if (allowed && (dtype == DType::kBF16 || !bf16_peak)) return peak.tflops * 1e3;
  }
  return 0;
}

class Matrix {
 public:
  Matrix(DType dtype, int64_t rows, int64_t columns, uint64_t seed)
      : buffer_(std::max<int64_t>(1, rows * columns * dtype_bytes(dtype))),
        view_(buffer_.data(), dtype, {rows, columns}) {
    const CounterRng rng(seed, 0);
    for (int64_t i = 0; i < rows * columns; ++i) {
      const float value = rng.uniform(static_cast<uint64_t>(i % 65521)) - 0.5f;
      if (dtype == DType::kBF16) {
        view_.as<bf16>()[i] = to_bf16(value);
      } else {
        view_.as<float>()[i] = value;
      }
    }
  }
  TensorView view() const { return view_; }
  double at(int64_t row, int64_t column) const {
    const int64_t i = row * view_.dim(1) + column;
    return view_.dtype() == DType::kBF16 ? to_float(view_.as<bf16>()[i]) : view_.as<float>()[i];
  }

 private:
  PageBuffer buffer_;
  TensorView view_;
};

// x [T, K], y or dy [T, N], and copies of w [N, K]; for backward_weight the copies are dw.
struct Operands {
  explicit Operands(const Case& c)
      : x(c.dtype, c.T, c.K, 1),
        y(c.dtype, c.T, c.N, 2),
        scratch(std::max<int64_t>(
            64, gemm_scratch_bytes({c.T, std::max(c.N, c.K), c.dtype, pool().num_threads()}))) {
    const DType w_dtype = c.product == Product::kBackwardWeight ? DType::kF32 : c.dtype;
    constexpr int64_t kColdBytes = 64 << 20;  // far beyond L2
    const int64_t w_bytes = c.N * c.K * dtype_bytes(w_dtype);
    const int64_t copies = std::clamp<int64_t>(kColdBytes / w_bytes, 1, 64);
    for (int64_t i = 0; i < copies; ++i) w.emplace_back(w_dtype, c.N, c.K, 3);
  }

  void run(const Case& c, size_t copy) {
    const TensorView weights = w[copy % w.size()].view();
    switch (c.product) {
      case Product::kForward:
        return gemm_forward(x.view(), weights, {}, y.view(), scratch.as<std::byte>(), pool());
      case Product::kBackwardInput:
        return gemm_backward_input(y.view(), weights, x.view(), Update::kOverwrite, scratch.as<std::byte>(),
                                   pool());
      case Product::kBackwardWeight:
        return gemm_backward_weight(y.view(), x.view(), weights, Update::kAdd, scratch.as<std::byte>(),
                                    pool());
    }
  }

  Matrix x, y;
  std::vector<Matrix> w;
  PageBuffer scratch;
};

// Runs the product once on fresh operands and compares 200 elements with float64.
bool verify(const Case& c) {
  const Operands before(c);
  Operands after(c);
  after.run(c, 0);
  const CounterRng rng(9, 0);
  const auto pick = [&](uint64_t index, int64_t size) {
    return std::min(size - 1, static_cast<int64_t>(rng.uniform(index) * static_cast<float>(size)));
  };
  for (uint64_t sample = 0; sample < 200; ++sample) {
    double sum = 0, magnitude = 0, got = 0;
    const auto add = [&](double a, double b) {
      sum += a * b;
      magnitude += std::abs(a * b);
    };
    const int64_t t = pick(3 * sample, c.T), n = pick(3 * sample + 1, c.N), k = pick(3 * sample + 2, c.K);
    if (c.product == Product::kForward) {
      for (int64_t i = 0; i < c.K; ++i) add(before.x.at(t, i), before.w[0].at(n, i));
      got = after.y.at(t, n);
    } else if (c.product == Product::kBackwardInput) {
      for (int64_t i = 0; i < c.N; ++i) add(before.y.at(t, i), before.w[0].at(i, k));
      got = after.x.at(t, k);
    } else {
      add(before.w[0].at(n, k), 1);
      for (int64_t i = 0; i < c.T; ++i) add(before.y.at(i, n), before.x.at(i, k));
      got = after.w[0].at(n, k);
    }
    const double terms = static_cast<double>(std::max({c.T, c.N, c.K}) + 2);
    const bool rounded = c.product != Product::kBackwardWeight && c.dtype == DType::kBF16;
    if (!(std::abs(got - sum) <= terms * 0x1p-24 * magnitude + (rounded ? 0x1p-8 * std::abs(sum) : 0))) {
      return false;
    }
  }
  return true;
}

void run_case(benchmark::State& state, const Case& c) {
  if (!verify(c)) return state.SkipWithError("wrong result");
  Operands operands(c);
  const double peak_before = peak_gflops(c.dtype);
  size_t copy = 0;
  for (auto _ : state) operands.run(c, copy++);
  const double peak = (peak_before + peak_gflops(c.dtype)) / 2;
  const double operations =
      2.0 * static_cast<double>(c.T) * static_cast<double>(c.N) * static_cast<double>(c.K);
  using benchmark::Counter;
  state.counters["GFLOP/s"] = Counter(operations * 1e-9, Counter::kIsIterationInvariantRate);
  state.counters["share"] = Counter(operations * 1e-9 / peak, Counter::kIsIterationInvariantRate);
  state.counters["weight_GB/s"] = Counter(static_cast<double>(operands.w[0].view().size_bytes()) * 1e-9,
                                          Counter::kIsIterationInvariantRate);
}

void register_cases() {
  const auto& chosen = gemm_table().chosen_implementation();
  struct WeightShape {
    const char* name;
    int64_t N, K, T;
  };
  for (const WeightShape& w :
       {WeightShape{"30m.qkv", 1024, 512, 4096}, WeightShape{"30m.o", 512, 512, 4096},
        WeightShape{"30m.gate_up", 3072, 512, 4096}, WeightShape{"30m.down", 512, 1536, 4096},
        WeightShape{"30m.lm_head", 8192, 512, 1024}, WeightShape{"30m.gate_up.ragged", 3072, 512, 1999},
        WeightShape{"30m.gate_up.generate", 3072, 512, 1}, WeightShape{"8b.qkv", 6144, 4096, 1024},
        WeightShape{"8b.down", 4096, 14336, 1024}, WeightShape{"8b.down.generate", 4096, 14336, 1}}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const Product product : {Product::kForward, Product::kBackwardInput, Product::kBackwardWeight}) {
        if (w.T == 1 && product != Product::kForward) continue;
        const Case c = {product, dtype, w.T, w.N, w.K};
        const std::string name =
            fmt::format("{}/{}/{}/{}({})/T:{}/N:{}/K:{}", w.name, kProductNames[static_cast<int>(product)],
                        dtype_name(dtype), chosen.name, isa_name(chosen.isa), c.T, c.N, c.K);
        benchmark::RegisterBenchmark(name.c_str(), [c](benchmark::State& state) { run_case(state, c); })
            ->Unit(benchmark::kMillisecond)
            ->UseRealTime();
      }
    }
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  tessera::request_amx_permission();
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
