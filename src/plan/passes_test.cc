#include "plan/passes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "ops/cpu_ops.h"
#include "optim/elementwise.h"
#include "platform/thread_pool.h"
#include "support/model_test_support.h"

namespace tessera {
namespace {

// A layer's state is 117 MB, its activations 22 KB per token.
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
                 bool gradient_checkpointing = false, bool offload_inputs = false) {
    LlamaModel model(config, DType::kBF16, *ops_);
    ActivationLimits limits = {num_tokens, num_tokens};
    limits.gradient_checkpointing = gradient_checkpointing;
    limits.offload_inputs = offload_inputs;
    return micro_batches_per_pass(model, limits, max_merged, AdamW::kStateTensors);
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

// 1.9 GB in all, activations 590 KB per token: room for some 400 more. The adapters' own state has room for
// none.
TEST_F(MicroBatchesPerPass, FrozenWeightsCountAsState) {
  ModelConfig large = wide_config();
  large.hidden_size = 4096;
  large.num_hidden_layers = 16;
  LoraConfig& lora = large.lora.emplace();
  lora.target_modules = lora_module_names();
  EXPECT_EQ(merged(large, 128, 16), 4);
}

TEST_F(MicroBatchesPerPass, StopsWhereActivationsWouldOutgrowTheState) {
  const int64_t some = merged(wide_config(), 128, 16);
  EXPECT_GT(some, 1);
  EXPECT_LT(some, 16);
  EXPECT_EQ(merged(wide_config(), 128, 16, /*gradient_checkpointing=*/true), some);
  EXPECT_EQ(merged(wide_config(), 128, 16, /*gradient_checkpointing=*/true, /*offload_inputs=*/true), some);
  EXPECT_EQ(merged(tiny_config(), 128, 16), 1);
}

// Steps of two passes of up to three rows, in the order of the dataset, starting over at its end; counts the
// queries.
struct CountedSteps {
  explicit CountedSteps(std::vector<int64_t> row_lengths) : lengths(std::move(row_lengths)) {}

  StepSurvey survey(int64_t num_steps) {
    StepSurvey survey;
    survey.num_steps = num_steps;
    survey.step_rows = 6;
    survey.max_pass_rows = 3;
    survey.num_rows = std::ssize(lengths);
    survey.max_row_length = *std::max_element(lengths.begin(), lengths.end());
    survey.row_length = [this](int64_t row) {
      ++num_lengths;
      return lengths[static_cast<size_t>(row)];
    };
    survey.largest_pass_of = [this](int64_t step) {
      ++num_steps_asked;
      return std::max(pass(step * 6), pass(step * 6 + 3));
    };
    return survey;
  }
  int64_t pass(int64_t first) const {
    int64_t sum = 0;
    for (int64_t i = first; i < first + 3; ++i) sum += lengths[static_cast<size_t>(i % std::ssize(lengths))];
    return sum;
  }

  std::vector<int64_t> lengths;
  int64_t num_steps_asked = 0;
  int64_t num_lengths = 0;
};

TEST(LargestPass, IsFoundWhereTheStepsAreFew) {
  CountedSteps steps({5, 1, 2, 8, 8, 1, 9, 3, 3, 1, 1, 1});
  EXPECT_EQ(largest_pass(steps.survey(1)), 17);
  EXPECT_EQ(largest_pass(steps.survey(2)), 17);
  CountedSteps later({5, 1, 2, 8, 2, 1, 9, 9, 8, 1, 1, 1});
  EXPECT_EQ(largest_pass(later.survey(1)), 11);
  EXPECT_EQ(largest_pass(later.survey(2)), 26);
}

TEST(LargestPass, OneStepOfPackedRowsProvesIt) {
  std::vector<int64_t> lengths(100, 512);
  lengths.back() = 3;
  CountedSteps steps(lengths);
  EXPECT_EQ(largest_pass(steps.survey(1'000'000)), 3 * 512);
  EXPECT_EQ(steps.num_steps_asked, 1);
  EXPECT_EQ(steps.num_lengths, 0);
}

TEST(LargestPass, MillionsOfStepsAreNotAskedOneByOne) {
  CountedSteps steps({5, 1, 2, 8, 8, 1, 9, 3, 3, 1, 1});
  EXPECT_EQ(largest_pass(steps.survey(int64_t{1} << 50)), 9 + 8 + 8);
  EXPECT_LE(steps.num_steps_asked * 6, 1'000'000);
  EXPECT_EQ(steps.num_lengths, 11);
}

TEST(LargestPass, RowsThatComeTwiceInAPassCountTwice) {
  CountedSteps steps({7, 4});
  const int64_t bound = largest_pass(steps.survey(int64_t{1} << 50));
  EXPECT_GE(bound, 7 + 4 + 7);
  EXPECT_LE(bound, 7 * 3);
}

}  // namespace
}  // namespace tessera
