// Verification must catch every kind of wrong kernel and let correct ones pass.
#include "bench/kernels/verify.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cctype>
#include <cmath>

#include "bench/kernels/attention_bench.h"
#include "bench/kernels/gemm_bench.h"
#include "bench/kernels/optimizer_bench.h"
#include "expect_error.h"
#include "support/bench_test_support.h"

namespace tessera {
namespace {

void scale_all(TensorView tensor, float factor) {
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    if (tensor.dtype() == DType::kBF16) {
      bf16& value = tensor.as<bf16>()[i];
      value = to_bf16(factor * to_float(value));
    } else {
      tensor.as<float>()[i] *= factor;
    }
  }
}

constexpr float kWrong = 1.05f;

// kGemmRef with one fault.
GemmImplementation gemm_with(void (*change)(GemmKernels&)) {
  GemmImplementation implementation = {"ref", Isa::kRef, kGemmRef};
  change(implementation.kernels);
  return implementation;
}

struct GemmFault {
  Product product;
  void (*change)(GemmKernels&);

  friend void PrintTo(const GemmFault& fault, std::ostream* out) { *out << product_name(fault.product); }
};

class WrongProduct : public testing::TestWithParam<GemmFault> {};

TEST_P(WrongProduct, IsAnInternalErrorWithShapeAndNumbers) {
  ThreadPool pool(1);
  const Product product = GetParam().product;
  const GemmImplementation wrong = gemm_with(GetParam().change);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    expect_error(ExitCode::kInternal,
                 {fmt::format("gemm {} T 5 N 33 K 17", product_name(product)), "out[", "expected", "within"},
                 [&] {
                   run_gemm_case({product, dtype, 5, 33, 17}, wrong, {}, shortest(), pool);
                 });
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, WrongProduct,
    testing::Values(GemmFault{Product::kForward,
                              [](GemmKernels& kernels) {
                                kernels.forward = [](auto x, auto w, auto bias, TensorView y, auto scratch,
                                                     auto& pool) {
                                  kGemmRef.forward(x, w, bias, y, scratch, pool);
                                  scale_all(y, kWrong);
                                };
                              }},
                    GemmFault{Product::kBackwardInput,
                              [](GemmKernels& kernels) {
                                kernels.backward_input = [](auto dy, auto w, TensorView dx, Update update,
                                                            auto scratch, auto& pool) {
                                  kGemmRef.backward_input(dy, w, dx, update, scratch, pool);
                                  scale_all(dx, kWrong);
                                };
                              }},
                    // Leaves the output unchanged.
                    GemmFault{Product::kBackwardWeight,
                              [](GemmKernels& kernels) {
                                kernels.backward_weight = [](ConstTensorView, ConstTensorView, TensorView,
                                                             WeightUpdate, std::span<std::byte>,
                                                             ThreadPool&) {};
                              }},
                    // Overwrites the output instead of adding to it.
                    GemmFault{Product::kBackwardWeightAdd,
                              [](GemmKernels& kernels) {
                                kernels.backward_weight = [](auto dy, auto x, TensorView dw, WeightUpdate,
                                                             auto scratch, auto& pool) {
                                  kGemmRef.backward_weight(dy, x, dw, Update::kOverwrite, scratch, pool);
                                };
                              }}),
    [](const auto& test) {
      std::string name = testing::PrintToString(test.param);
      std::replace_if(
          name.begin(), name.end(), [](unsigned char c) { return !std::isalnum(c); }, '_');
      return name;
    });

TEST(GemmBench, ComparedImplementationsAreVerifiedToo) {
  ThreadPool pool(1);
  const GemmImplementation right = {"ref", Isa::kRef, kGemmRef};
  GemmImplementation wrong = right;
  wrong.name = "other";
  wrong.kernels.forward = [](auto x, auto w, auto bias, TensorView y, auto scratch, auto& on) {
    kGemmRef.forward(x, w, bias, y, scratch, on);
    y.as<float>()[0] = std::nanf("");
  };
  expect_error(ExitCode::kInternal, {"other (ref)", "out[0, 0] is nan"}, [&] {
    run_gemm_case({Product::kForward, DType::kF32, 4, 4, 4}, right, {wrong}, shortest(), pool);
  });
}

TEST(GemmBench, EveryUsableImplementationPasses) {
  ThreadPool pool(2);
  for (const GemmImplementation& implementation : gemm_table().usable()) {
    for (const Product product : kProducts) {
      for (const DType dtype : {DType::kBF16, DType::kF32}) {
        const BenchLine line = run_gemm_case({product, dtype, 37, 65, 50}, implementation,
                                             {{"ref", Isa::kRef, kGemmRef}}, shortest(), pool);
        EXPECT_EQ(line.verification.num_checked, 128);
        EXPECT_LE(line.verification.worst_error, 1);
        EXPECT_EQ(line.rounds, 1);
        EXPECT_GT(line.share.median, 0);
        EXPECT_EQ(line.others.size(), 1u);
        EXPECT_GT(line.others[0].ratio.median, 0);
        EXPECT_DOUBLE_EQ(line.amount, 2e-12 * 37 * 65 * 50);
      }
    }
  }
}

TEST(GemmBench, NamesWhoComputesFloat32) {
  GemmImplementation implementation = {"tiles", Isa::kAvx2, kGemmRef};
  EXPECT_EQ(gemm_implementation_text(implementation, DType::kF32), "tiles (avx2)");
  implementation.kernels.float32_name = "other";
  EXPECT_EQ(gemm_implementation_text(implementation, DType::kF32), "other (avx2)");
  EXPECT_EQ(gemm_implementation_text(implementation, DType::kBF16), "tiles (avx2)");
}

TEST(AttentionBench, EveryUsableImplementationPasses) {
  ThreadPool pool(2);
  for (const AttentionImplementation& implementation : attention_table().usable()) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const bool backward : {false, true}) {
        const AttentionCase c = {backward, dtype, 2, 70, 4, 2, 64};
        const BenchLine line = run_attention_case(c, implementation, {}, shortest(), pool);
        EXPECT_LE(line.verification.worst_error, 1);
        EXPECT_GT(line.verification.num_checked, 1000);
      }
    }
  }
}

TEST(AttentionBench, CountsTheCausalHalf) {
  const AttentionCase c = {false, DType::kBF16, 3, 100, 8, 2, 64};
  EXPECT_DOUBLE_EQ(c.flop(), 3 * (100 * 101 / 2) * 8 * 64 * 4.0);
  AttentionCase backward = c;
  backward.backward = true;
  EXPECT_DOUBLE_EQ(backward.flop(), 2.5 * c.flop());
}

const AttentionKernels& right_attention() {
  static const AttentionKernels kernels = attention_ref().front().kernels;
  return kernels;
}

TEST(AttentionBench, WrongKernelsAreInternalErrors) {
  ThreadPool pool(1);
  AttentionImplementation wrong = {"wrong", Isa::kRef, right_attention()};
  wrong.kernels.forward = [](auto qkv, const AttentionShape& shape, auto starts, TensorView o, TensorView lse,
                             auto scratch, ThreadPool& on) {
    right_attention().forward(qkv, shape, starts, o, lse, scratch, on);
    scale_all(o, kWrong);
  };
  wrong.kernels.backward = [](auto d_o, auto qkv, auto o, auto lse, const AttentionShape& shape, auto starts,
                              TensorView dqkv, auto scratch, ThreadPool& on) {
    right_attention().backward(d_o, qkv, o, lse, shape, starts, dqkv, scratch, on);
    scale_all(dqkv, kWrong);
  };
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    expect_error(ExitCode::kInternal, {"attention forward 1 row of 20", "o[", "wrong (ref)"}, [&] {
      run_attention_case({false, dtype, 1, 20, 2, 1, 16}, wrong, {}, shortest(), pool);
    });
    AttentionImplementation only_backward = wrong;
    only_backward.kernels.forward = right_attention().forward;
    expect_error(ExitCode::kInternal, {"attention backward 1 row of 20", "dk["}, [&] {
      run_attention_case({true, dtype, 1, 20, 2, 1, 16}, only_backward, {}, shortest(), pool);
    });
  }
}

TEST(OptimizerBench, EveryUsableImplementationPasses) {
  ThreadPool pool(2);
  BandwidthMeter bandwidth(pool, 1 << 20);
  for (const AdamWImplementation& implementation : update_table<AdamWRule>().usable()) {
    for (const DType dtype : {DType::kBF16, DType::kF32}) {
      for (const bool has_coded_moments : {false, true}) {
        const OptimizerCase c = {dtype, 5001, has_coded_moments};
        const BenchLine line = run_optimizer_case(c, implementation, {}, shortest(), bandwidth, pool);
        EXPECT_GE(line.verification.num_checked, 2900);
        EXPECT_LE(line.verification.worst_error, 1);
        const double bytes = has_coded_moments ? 12 * 5001 + 4 * 33 * 157 : 28 * 5001;
        EXPECT_DOUBLE_EQ(line.amount, 1e-9 * bytes);
      }
    }
  }
  for (const auto& implementation : elementwise_table().usable()) {
    EXPECT_LE(
        run_gradient_norm_case(5001, implementation, shortest(), bandwidth, pool).verification.worst_error,
        1);
  }
}

TEST(OptimizerBench, WrongKernelsAreInternalErrors) {
  ThreadPool pool(1);
  BandwidthMeter bandwidth(pool, 1 << 20);
  AdamWImplementation wrong = {"wrong", Isa::kRef, update_ref<AdamWRule>().front().kernels};
  // Omits the bias correction of the first moment.
  wrong.kernels.update = [](const OptimizerBlock& block, MomentForm form, const AdamWScalars& scalars,
                            ThreadPool& on) {
    AdamWScalars changed = scalars;
    changed.step_size *= 0.99f;
    update_ref<AdamWRule>().front().kernels.update(block, form, changed, on);
  };
  expect_error(ExitCode::kInternal, {"adamw F32, 300 parameters", "weight[0, "}, [&] {
    run_optimizer_case({DType::kF32, 300}, wrong, {}, shortest(), bandwidth, pool);
  });
}

TEST(Benchmarks, RefuseWhatDoesNotFitInMemory) {
  ThreadPool pool(1);
  const GemmImplementation ref = {"ref", Isa::kRef, kGemmRef};
  expect_error(ExitCode::kBadConfig, {"gemm forward", "needs", "PiB of memory", "are free"}, [&] {
    run_gemm_case({Product::kForward, DType::kBF16, 1 << 24, 1 << 24, 1 << 24}, ref, {}, shortest(), pool);
  });
  BandwidthMeter bandwidth(pool, 1 << 20);
  expect_error(ExitCode::kBadConfig, {"adamw BF16", "of memory", "are free"}, [&] {
    run_optimizer_case({DType::kBF16, int64_t{1} << 50}, update_table<AdamWRule>().chosen_implementation(),
                       {}, shortest(), bandwidth, pool);
  });
}

TEST(GemmShapes, AreParsedOrRefused) {
  const GemmCase c = parse_gemm_shape("512x4096x14336");
  EXPECT_EQ(c.T, 512);
  EXPECT_EQ(c.N, 4096);
  EXPECT_EQ(c.K, 14336);
  for (const char* text : {"", "512", "512x4096", "512x4096x", "0x1x1", "1x1x1x1", "-1x2x3", "ax1x1",
                           "1 x1x1", "99999999999999999999x1x1", "1x1x1 "}) {
    expect_error(ExitCode::kUsage, {"--shapes", "expected TxNxK"}, [&] { parse_gemm_shape(text); });
  }
  expect_error(ExitCode::kUsage, {"expected forward, backward_input", "found 'sideways'"},
               [] { parse_product("sideways"); });
}

TEST(GemmShapes, AreThoseOfTheModel) {
  EXPECT_EQ(weight_shapes(preset_config("llama3-8b")), (std::vector<WeightShape>{{4096, 4096},
                                                                                 {1024, 4096},
                                                                                 {6144, 4096},
                                                                                 {14336, 4096},
                                                                                 {28672, 4096},
                                                                                 {4096, 14336},
                                                                                 {128256, 4096}}));
  EXPECT_EQ(
      weight_shapes(preset_config("15m")),
      (std::vector<WeightShape>{{384, 384}, {128, 384}, {640, 384}, {1024, 384}, {2048, 384}, {384, 1024}}));
}

TEST(SampleIndices, AscendAndHoldBothEnds) {
  EXPECT_EQ(sample_indices(3, 8), (std::vector<int64_t>{0, 1, 2}));
  for (const int64_t size : {9, 64, 1000, 128256}) {
    const std::vector<int64_t> indices = sample_indices(size, 8);
    EXPECT_EQ(indices.front(), 0);
    EXPECT_EQ(indices.back(), size - 1);
    EXPECT_GE(indices.size(), 6u) << size;
    for (size_t i = 1; i < indices.size(); ++i) EXPECT_GT(indices[i], indices[i - 1]) << size;
  }
}

}  // namespace
}  // namespace tessera
