// The benchmarks of a device, on one whose memory the host cannot reach.
#include "bench/kernels/attention_bench.h"
#include "bench/kernels/gemm_bench.h"

#include <gtest/gtest.h>

#include "bench/step/train_step_bench.h"
#include "expect_error.h"
#include "support/bench_test_support.h"
#include "support/isolated_device.h"

namespace tessera {
namespace {

constexpr int64_t kSmallPeak = 64;

std::unique_ptr<Ops> isolated_ops(ThreadPool& pool) { return std::make_unique<OwnedIsolatedOps>(pool); }

void expect_measured(const BenchLine& line) {
  EXPECT_EQ(line.rounds, 2);
  EXPECT_GT(line.speed.median, 0);
  EXPECT_GT(line.peak.median, 0);
  EXPECT_GT(line.verification.num_checked, 0);
  EXPECT_LE(line.verification.worst_error, 1);
}

// One wrong element in a thousand.
class WrongOps final : public ForwardingOps {
 public:
  explicit WrongOps(ThreadPool& pool) : ForwardingOps(*this), right_(pool) { forward_to(right_); }

  void linear(ConstTensorView x_TK, const LinearWeight& weight, ConstTensorView bias_N,
              TensorView y_TN) override {
    ForwardingOps::linear(x_TK, weight, bias_N, y_TN);
    zero(y_TN.rows(0, 1));
  }
  void attention(ConstTensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                 TensorView o_THE, TensorView lse_HT) override {
    ForwardingOps::attention(qkv_TQ, shape, cu_seqlens, o_THE, lse_HT);
    zero(o_THE.rows(0, 1));
  }

 private:
  OwnedIsolatedOps right_;
};

GemmCase small_product(Product product, DType dtype) {
  GemmCase c;
  c.product = product;
  c.dtype = dtype;
  c.T = 24;
  c.N = 40;
  c.K = 32;
  return c;
}

AttentionCase small_attention(bool backward, DType dtype) { return {backward, dtype, 2, 24, 4, 2, 16}; }

TEST(DeviceBench, VerifiesAndMeasuresProductsAndAttention) {
  ThreadPool pool(2);
  OwnedIsolatedOps ops(pool);
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    DevicePeakMeter peak(ops, dtype, kSmallPeak);
    const BenchDevice device = {ops, peak, pool};
    MeasureOptions options = shortest(/*rounds=*/2);
    options.cold_bytes = 1 << 16;  // several copies
    for (const Product product : kProducts) {
      SCOPED_TRACE(product_name(product));
      const BenchLine line = run_device_gemm_case(small_product(product, dtype), device, options);
      expect_measured(line);
      EXPECT_EQ(line.amount, 2e-12 * 24 * 40 * 32);
      EXPECT_EQ(line.operation, product_name(product));
    }
    for (const bool backward : {false, true}) {
      expect_measured(run_device_attention_case(small_attention(backward, dtype), device, options));
    }
  }
}

TEST(DeviceBench, RefusesWrongResults) {
  ThreadPool pool(1);
  WrongOps ops(pool);
  DevicePeakMeter peak(ops, DType::kF32, kSmallPeak);
  const BenchDevice device = {ops, peak, pool};
  expect_error(ExitCode::kInternal, {"gemm forward", "expected"}, [&] {
    run_device_gemm_case(small_product(Product::kForward, DType::kF32), device, shortest());
  });
  expect_error(ExitCode::kInternal, {"attention forward", "expected"},
               [&] { run_device_attention_case(small_attention(false, DType::kF32), device, shortest()); });
}

TEST(DeviceBench, OperandsMustFitIntoItsMemory) {
  ThreadPool pool(1);
  OwnedIsolatedOps ops(pool, /*free_bytes=*/1 << 10);
  DevicePeakMeter peak(ops, DType::kF32, kSmallPeak);
  expect_error(ExitCode::kBadConfig, {"gemm forward T 24", "1.00 KiB are free on isolated"}, [&] {
    run_device_gemm_case(small_product(Product::kForward, DType::kF32), {ops, peak, pool}, shortest());
  });
}

TEST(DeviceBench, MeasuresATrainingStepPartByPart) {
  ThreadPool pool(2);
  const StepDevice on = {isolated_ops, kSmallPeak};
  for (const DType dtype : {DType::kBF16, DType::kF32}) {
    for (const bool has_adapters : {false, true}) {
      SCOPED_TRACE(fmt::format("{} adapters {}", dtype_name(dtype), has_adapters));
      TrainStepOptions options = tiny_step();
      options.dtype = dtype;
      options.with_head = !has_adapters;
      if (has_adapters) {
        LoraConfig& lora = options.config.lora.emplace();
        lora.r = 2;
        lora.target_modules = lora_module_names();
      }
      const TrainStepLine line = run_train_step(options, shortest(/*rounds=*/2), nullptr, pool, on);
      EXPECT_EQ(line.rounds, 2);
      EXPECT_GT(line.forward_seconds.median, 0);
      EXPECT_EQ(line.head_seconds.median > 0, options.with_head);
      EXPECT_GT(line.backward_seconds.median, 0);
      EXPECT_GT(line.optimizer_seconds.median, 0);
      EXPECT_GT(line.mfu.median, 0);
      EXPECT_EQ(line.ratio_full_step.has_value(), has_adapters);
      double sum = 0;
      bool has_update = false;
      for (const auto& [name, share] : line.operation_shares) {
        sum += share;
        has_update |= name == "adamw" && share > 0;
      }
      EXPECT_NEAR(sum, 1, 1e-9);
      EXPECT_TRUE(has_update) << "on the device";
    }
  }
}

TEST(DeviceBench, AStepMustFitIntoItsMemory) {
  ThreadPool pool(1);
  const StepDevice on = {
      [](ThreadPool& threads) { return std::make_unique<OwnedIsolatedOps>(threads, 1 << 10); }, kSmallPeak};
  expect_error(ExitCode::kBadConfig, {"the step does not fit in memory", "on isolated"},
               [&] { run_train_step(tiny_step(), shortest(), nullptr, pool, on); });
}

}  // namespace
}  // namespace tessera
