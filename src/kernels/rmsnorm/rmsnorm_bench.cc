// RMSNorm over rows as long as the hidden sizes of small and large models, on activations far beyond the
// caches. GB/s counts every activation read and written once; `share` is the part of the copy bandwidth.
// Checked against the reference before it is timed. TESSERA_ISA selects the implementation.
#include "kernels/kernel_bench_util.h"
#include "kernels/rmsnorm/rmsnorm_impl.h"

namespace tessera {
namespace {

constexpr float kEps = 1e-5f;
constexpr int64_t kElements = 32 << 20;

enum class Pass { kForward, kAddForward, kBackward };
constexpr const char* kPassNames[] = {"forward", "add_forward", "backward"};
// Activations read and written: x, y | x, y, x, norm | dy, x, dx.
constexpr double kArrays[] = {2, 4, 3};

struct Operands {
  Operands(DType dtype, int64_t rows, int64_t width)
      : x(dtype, {rows, width}, 1),
        y(dtype, {rows, width}, 2),
        out(dtype, {rows, width}, 3),
        w(dtype, {width}, 4),
        rstd(DType::kF32, {rows}, 5),
        dw(DType::kF32, {width}, 6),
        scratch(rmsnorm_backward_scratch_bytes(rows, width)) {}

  void run(const RmsNormKernels& kernels, Pass pass) {
    switch (pass) {
      case Pass::kForward:
        return kernels.forward(x.view(), w.view(), kEps, out.view(), rstd.view(), bench_pool());
      case Pass::kAddForward:
        return kernels.add_forward(x.view(), y.view(), w.view(), kEps, out.view(), rstd.view(), bench_pool());
      case Pass::kBackward:
        return kernels.backward(y.view(), x.view(), w.view(), rstd.view(), out.view(), Update::kOverwrite,
                                dw.view(), scratch.as<std::byte>(), bench_pool());
    }
  }

  BenchTensor x, y, out, w, rstd, dw;
  PageBuffer scratch;
};

bool verify(Pass pass, DType dtype, int64_t width) {
  Operands fast(dtype, 100, width), reference(dtype, 100, width);
  fast.run(rmsnorm_table().chosen(), pass);
  reference.run(rmsnorm_ref()[0].kernels, pass);
  return relative_difference(fast.out, reference.out) < tolerance(dtype) &&
         relative_difference(fast.dw, reference.dw) < 1e-4;
}

void run_case(benchmark::State& state, Pass pass, DType dtype, int64_t width) {
  if (!verify(pass, dtype, width)) return state.SkipWithError("wrong result");
  Operands operands(dtype, kElements / width, width);
  const double bytes =
      kArrays[static_cast<size_t>(pass)] * static_cast<double>(kElements * dtype_bytes(dtype));
  run_against(state, copy_gb_per_s, bytes * 1e-9, "GB/s",
              [&] { operands.run(rmsnorm_table().chosen(), pass); });
}

}  // namespace
}  // namespace tessera

int main(int argc, char** argv) {
  using tessera::DType;
  using tessera::Pass;
  benchmark::Initialize(&argc, argv);
  tessera::describe_machine(tessera::chosen_name(tessera::rmsnorm_table()));
  for (const Pass pass : {Pass::kForward, Pass::kAddForward, Pass::kBackward}) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const int64_t width : {512, 4096}) {
        const std::string name =
            fmt::format("rmsnorm_{}/{}/D:{}", tessera::kPassNames[static_cast<size_t>(pass)],
                        tessera::dtype_name(dtype), width);
        benchmark::RegisterBenchmark(name.c_str(), tessera::run_case, pass, dtype, width)
            ->UseRealTime()
            ->Unit(benchmark::kMillisecond);
      }
    }
  }
  benchmark::RunSpecifiedBenchmarks();
}
