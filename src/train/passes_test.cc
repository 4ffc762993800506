#include "train/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/model_test_support.h"
#include "ops/cpu_ops.h"
#include "platform/thread_pool.h"

namespace tessera {
namespace {

// A layer's state is 117 MB, its activations 22 KB a token.
ModelConfig wide_config() {
  ModelConfig config = tiny_config();
  config.hidden_size = 512;
  config.intermediate_size = 4096;
  config.num_attention_heads = 8;
  config.num_key_value_heads = 8;
  config.head_dim = 64;
  return config;
}

class MicroBatchesPerPass : public testing::Test {
 protected:
  int64_t merged(const ModelConfig& config, int64_t num_tokens, int64_t max_merged,
                 bool gradient_checkpointing = false) {
    Model model(config, DType::kBF16, *ops_);
    ActivationLimits limits = {num_tokens, num_tokens};
    limits.gradient_checkpointing = gradient_checkpointing;
    return micro_batches_per_pass(model, limits, max_merged);
  }

  ThreadPool pool_{1};
  std::unique_ptr<Ops> ops_ = make_cpu_ops(pool_);
};

TEST_F(MicroBatchesPerPass, StopsAtEnoughTokens) {
  ModelConfig large = wide_config();
  large.hidden_size = 4096;
  large.num_hidden_layers = 16;
  EXPECT_EQ(merged(large, 512, 64), 4);
  EXPECT_EQ(merged(large, 500, 64), 5);
  EXPECT_EQ(merged(large, 2048, 64), 1);
  EXPECT_EQ(merged(large, 512, 3), 3);
}

TEST_F(MicroBatchesPerPass, StopsWhereActivationsWouldOutgrowTheState) {
  const int64_t some = merged(wide_config(), 128, 16);
  EXPECT_GT(some, 1);
  EXPECT_LT(some, 16);
  EXPECT_EQ(merged(wide_config(), 128, 16, /*gradient_checkpointing=*/true), some);
  EXPECT_EQ(merged(tiny_config(), 128, 16), 1);
}

}  // namespace
}  // namespace tessera
