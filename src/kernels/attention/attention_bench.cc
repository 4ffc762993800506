// Causal attention, 8 heads of 64, forward and backward, at sequence lengths 512 and 2048. Counts the
// operations of the part below the diagonal: 2 S^2 E per head forward, 5 S^2 E backward (5 products, whatever
// the implementation computes again). `share` is the part of the float32 multiply-add peak. Checked against
// the reference on a shorter sequence before it is timed. TESSERA_ISA selects the implementation.
#include "kernels/attention/attention_impl.h"
#include "kernels/kernel_bench_util.h"

namespace tessera {
namespace {

struct Operands {
  Operands(DType dtype, const AttentionShape& s, int64_t length)
      : shape(s),
        cu_seqlens{0, static_cast<int32_t>(length)},
        qkv(dtype, {length, s.qkv_width()}, 1),
        o(dtype, {length, s.num_heads * s.head_dim}, 2),
        lse(DType::kF32, {s.num_heads, length}, 3),
        d_o(dtype, {length, s.num_heads * s.head_dim}, 4),
        dqkv(dtype, {length, s.qkv_width()}, 5),
        scratch(attention_scratch_bytes(s, length, bench_pool().num_threads())) {}

  void forward(const AttentionKernels& kernels) {
    kernels.forward(qkv.view(), shape, cu_seqlens, o.view(), lse.view(), scratch.as<std::byte>(),
                    bench_pool());
  }
  void backward(const AttentionKernels& kernels) {
    kernels.backward(d_o.view(), qkv.view(), o.view(), lse.view(), shape, cu_seqlens, dqkv.view(),
                     scratch.as<std::byte>(), bench_pool());
  }

  AttentionShape shape;
  std::vector<int32_t> cu_seqlens;
  BenchTensor qkv, o, lse, d_o, dqkv;
  PageBuffer scratch;
};

AttentionShape make_shape(int64_t num_key_value_heads) {
  return {.num_heads = 8,
          .num_key_value_heads = num_key_value_heads,
          .head_dim = 64,
          .sliding_window = 0,
          .scale = 0.125f};
}

bool verify(DType dtype, const AttentionShape& shape) {
  Operands fast(dtype, shape, 200), reference(dtype, shape, 200);
  fast.forward(attention_table().chosen());
  fast.backward(attention_table().chosen());
  reference.forward(attention_ref()[0].kernels);
  reference.backward(attention_ref()[0].kernels);
  return relative_difference(fast.o, reference.o) < tolerance(dtype) &&
         relative_difference(fast.dqkv, reference.dqkv) < tolerance(dtype);
}

void run_case(benchmark::State& state, bool backward, DType dtype, int64_t length,
              int64_t num_key_value_heads) {
  const AttentionShape shape = make_shape(num_key_value_heads);
  if (!verify(dtype, shape)) return state.SkipWithError("wrong result");
  Operands operands(dtype, shape, length);
  operands.forward(attention_table().chosen());
  const double products = backward ? 5 : 2;
  const auto S = static_cast<double>(length);
  const double operations =
      products * S * S * static_cast<double>(shape.head_dim) * static_cast<double>(shape.num_heads);
  run_against(state, float32_peak_gflops, operations * 1e-9, "GFLOP/s", [&] {
    if (backward) {
      operands.backward(attention_table().chosen());
    } else {
      operands.forward(attention_table().chosen());
    }
  });
}

void register_cases() {
  for (const bool backward : {false, true}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const int64_t length : {512, 2048}) {
        for (const int64_t num_key_value_heads : {8, 2}) {
          const std::string name =
              fmt::format("attention_{}/{}/S:{}/H:8/G:{}/E:64", backward ? "backward" : "forward",
                          dtype_name(dtype), length, num_key_value_heads);
          benchmark::RegisterBenchmark(name.c_str(), run_case, backward, dtype, length, num_key_value_heads)
              ->UseRealTime()
              ->Unit(benchmark::kMillisecond);
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  tessera::describe_machine(tessera::chosen_name(tessera::attention_table()));
  tessera::register_cases();
  benchmark::RunSpecifiedBenchmarks();
}
