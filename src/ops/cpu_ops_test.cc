#include "ops/cpu_ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

namespace tessera {
namespace {

OpsLimits small_limits(DType dtype) {
  return {
      .max_tokens = 4,
      .max_sequence_length = 4,
      .hidden_size = 3,
      .intermediate_size = 5,
      .vocab_size = 7,
      .max_logits_rows = 4,
      .attention = {.num_heads = 2, .num_key_value_heads = 1, .head_dim = 2, .sliding_window = 0, .scale = 1},
      .dtype = dtype,
      .training = true};
}

TEST(CpuOps, DescriptionNamesEveryKernel) {
  ThreadPool pool(2);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  EXPECT_THAT(ops->description(),
              testing::MatchesRegex("cpu: gemm [a-z_]+ \\([a-z0-9_]+\\),.*cross_entropy.*"));
}

TEST(CpuOps, LinearAndLossRunInsideTheBoundWorkspace) {
  ThreadPool pool(2);
  const std::unique_ptr<Ops> ops = make_cpu_ops(pool);
  std::vector<std::byte> workspace(static_cast<size_t>(ops->workspace_bytes(small_limits(DType::kF32))));
  ops->bind_workspace(workspace);
  const std::vector<float> x = {1, 2, 3, 4, 5, 6}, w = {1, 0, -1, 2, 1, 0}, bias = {10, 20};
  std::vector<float> y(4);
  ops->linear({x.data(), DType::kF32, {2, 3}}, {w.data(), DType::kF32, {2, 3}},
              {bias.data(), DType::kF32, {2}}, {y.data(), DType::kF32, {2, 2}});
  EXPECT_EQ(y, (std::vector<float>{8, 24, 8, 33}));

  const std::vector<float> logits = {0, 0, 0, 0};
  const std::vector<int32_t> targets = {1, kIgnoredLabel};
  std::vector<float> dlogits(4);
  const LossSums sums = ops->cross_entropy({logits.data(), DType::kF32, {2, 2}}, targets, 0.0f, 1.0f,
                                           {dlogits.data(), DType::kF32, {2, 2}});
  EXPECT_EQ(sums.num_targets, 1);
  EXPECT_NEAR(sums.loss_sum, std::log(2.0), 1e-6);
  EXPECT_THAT(dlogits, testing::Pointwise(testing::FloatNear(1e-6f), {0.5f, -0.5f, 0.0f, 0.0f}));
}

}  // namespace
}  // namespace tessera
