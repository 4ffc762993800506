#include "devices/planned_card.h"

#include <gtest/gtest.h>

#include "devices/cuda/workspace.h"
#include "expect_error.h"
#include "ops/cpu_ops.h"

namespace tessera {
namespace {

class PlannedCardTest : public testing::Test {
 protected:
  PlannedCardTest()
      : pool_(1), cpu_(make_cpu_ops(pool_)), card_("NVIDIA L40S", 1 << 20), ops_(*cpu_, card_) {}

  ThreadPool pool_;
  std::unique_ptr<Ops> cpu_;
  PlannedCard card_;
  PlannedCardOps ops_;
};

TEST_F(PlannedCardTest, AnswersWithTheSizesOfACard) {
  EXPECT_EQ(&ops_.device(), &card_);
  EXPECT_EQ(card_.own_memory()->free_bytes, 1 << 20);
  EXPECT_EQ(ops_.packed_weight_bytes(4096, 4096, DType::kBF16), 0)
      << "no packed forms, whatever the processor has";
  OpsLimits limits = {};
  limits.max_tokens = 8192;
  limits.max_logits_rows = 64;
  limits.hidden_size = 4096;
  limits.attention.num_heads = 32;
  limits.attention.num_key_value_heads = 8;
  limits.attention.head_dim = 128;
  limits.dtype = DType::kBF16;
  constexpr int64_t kProducts = int64_t{64} << 20;
  EXPECT_EQ(ops_.workspace_bytes(limits), kProducts + 8192 * 8) << "losses in double";
  limits.training = true;
  EXPECT_EQ(ops_.workspace_bytes(limits), kProducts + 512 * 4096 * 4)
      << "sums of a norm's gradient, of 16 rows";
  limits.linears = {{8192, {128256, 4096}}};
  EXPECT_EQ(ops_.workspace_bytes(limits), kProducts + 128 * 128256 * 4) << "of a bias, of 64 rows";
}

TEST_F(PlannedCardTest, ComputesAndKeepsNothing) {
  const auto refused = [](const std::function<void()>& call) {
    expect_error(ExitCode::kInternal, {"NVIDIA L40S, which is only planned"}, call);
  };
  std::vector<std::byte> bytes(64);
  refused([&] { card_.allocate(64); });
  refused([&] { card_.copy_from_host(bytes, bytes.data()); });
  refused([&] { card_.copy_to_host(bytes.data(), bytes); });
  refused([&] { ops_.bind_workspace(bytes); });
  refused([&] { ops_.zero({}); });
}

}  // namespace
}  // namespace tessera
