// AdamW on 64 M parameters: 1 GiB, more than any cache, so the yardstick is memory. GB/s counts what moves,
// 28 bytes per element: weight (or bf16 half and remainder), m and v read and written, the gradient read.
// `share` is the part of the copy bandwidth. Checked bit for bit against the reference before it is timed.
// TESSERA_ISA selects the implementation.
#include <cstring>
#include <vector>

#include "kernels/adamw/adamw_impl.h"
#include "kernels/kernel_bench_util.h"

namespace tessera {
namespace {

constexpr int64_t kCount = 64 << 20;

constexpr double kBytesPerElement = 2 * 3 * 4 + 4;

struct Operands {
  explicit Operands(int64_t count)
      : num_elements(count),
        weight(DType::kF32, {count}, 1),
        gradient(DType::kF32, {count}, 2),
        m(count * 4),
        v(count * 4),
        half(DType::kBF16, {count}, 3),
        remainder(count * 2) {}

  void update(const AdamWKernels& kernels, bool split) {
    const AdamWScalars scalars = adamw_scalars(1e-3, 0.9, 0.95, 1e-8, 0.1, 7, 1);
    if (split) {
      kernels.update_bf16(half.view().as<bf16>(), remainder.as<int16_t>().data(), gradient.view().as<float>(),
                          m.as<float>().data(), v.as<float>().data(), num_elements, scalars, bench_pool());
    } else {
      kernels.update_f32(weight.view().as<float>(), gradient.view().as<float>(), m.as<float>().data(),
                         v.as<float>().data(), num_elements, scalars, bench_pool());
    }
  }

  int64_t num_elements;
  BenchTensor weight, gradient;
  PageBuffer m, v;
  BenchTensor half;
  PageBuffer remainder;
};

bool same_bytes(const void* a, const void* b, int64_t size_bytes) {
  return std::memcmp(a, b, static_cast<size_t>(size_bytes)) == 0;
}

bool verify(bool split) {
  Operands fast(100'003), reference(100'003);
  fast.update(adamw_table().chosen(), split);
  reference.update(adamw_ref()[0].kernels, split);
  return same_bytes(fast.weight.view().bytes(), reference.weight.view().bytes(),
                    fast.weight.view().size_bytes()) &&
         same_bytes(fast.half.view().bytes(), reference.half.view().bytes(), fast.half.view().size_bytes()) &&
         same_bytes(fast.remainder.data(), reference.remainder.data(), fast.remainder.size_bytes()) &&
         same_bytes(fast.m.data(), reference.m.data(), fast.m.size_bytes()) &&
         same_bytes(fast.v.data(), reference.v.data(), fast.v.size_bytes());
}

void run_case(benchmark::State& state, bool split) {
  if (!verify(split)) return state.SkipWithError("wrong result");
  Operands operands(kCount);
  operands.update(adamw_table().chosen(), split);
  run_against(state, copy_gb_per_s, kBytesPerElement * static_cast<double>(kCount) * 1e-9, "GB/s",
              [&] { operands.update(adamw_table().chosen(), split); });
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  tessera::describe_machine(tessera::chosen_name(tessera::adamw_table()));
  for (const bool split : {false, true}) {
    benchmark::RegisterBenchmark(split ? "adamw/bf16_and_remainder" : "adamw/f32", tessera::run_case, split)
        ->UseRealTime()
        ->Unit(benchmark::kMillisecond);
  }
  benchmark::RunSpecifiedBenchmarks();
}
