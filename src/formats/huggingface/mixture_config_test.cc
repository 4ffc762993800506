#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "formats/huggingface/model_config.h"
#include "formats/json.h"
#include "support/model_config_test_util.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

MixtureOfExperts mixture_of(const Json& json) {
  return *parse_model_config(json.dump(), "config.json").experts;
}

TEST(MixtureConfig, AbsentFieldsAreThoseOfTransformers) {
  const MixtureOfExperts qwen = mixture_of(base_config("qwen3_moe"));
  EXPECT_EQ(qwen.num_experts, 128);
  EXPECT_EQ(qwen.num_experts_per_tok, 8);
  EXPECT_EQ(qwen.moe_intermediate_size, 768);
  EXPECT_FALSE(qwen.norm_topk_prob);
  EXPECT_EQ(qwen.router_aux_loss_coef, 0);
  EXPECT_THAT(qwen.layers, ElementsAre(true, true, true, true));
  const MixtureOfExperts mixtral = mixture_of(base_config("mixtral"));
  EXPECT_EQ(mixtral.num_experts, 8);
  EXPECT_EQ(mixtral.num_experts_per_tok, 2);
  EXPECT_EQ(mixtral.moe_intermediate_size, 640);
  EXPECT_TRUE(mixtral.norm_topk_prob);
}

TEST(MixtureConfig, BothNamesOfTheNumberOfExpertsAreRead) {
  for (const char* model_type : {"qwen3_moe", "mixtral"}) {
    for (const char* name : {"num_experts", "num_local_experts"}) {
      EXPECT_EQ(mixture_of(base_config(model_type, {{name, 16}})).num_experts, 16) << model_type << name;
    }
  }
}

TEST(MixtureConfig, LayersAreDenseWhereTheFieldsSaySo) {
  EXPECT_THAT(mixture_of(base_config("qwen3_moe", {{"decoder_sparse_step", 2}})).layers,
              ElementsAre(false, true, false, true));
  EXPECT_THAT(mixture_of(base_config("qwen3_moe", {{"mlp_only_layers", {0, 3}}})).layers,
              ElementsAre(false, true, true, false));
}

TEST(MixtureConfig, TheLossOfTheBalanceCountsWithOutputRouterLogits) {
  const Json coefficient = {{"router_aux_loss_coef", 0.02}};
  EXPECT_FALSE(has_balance_loss(parse_model_config(base_config("mixtral", coefficient).dump(), "")));
  EXPECT_EQ(
      mixture_of(base_config("mixtral", {{"router_aux_loss_coef", 0.02}, {"output_router_logits", true}}))
          .router_aux_loss_coef,
      0.02);
  EXPECT_EQ(mixture_of(base_config("qwen3_moe", {{"output_router_logits", true}})).router_aux_loss_coef,
            0.001);
}

TEST(MixtureConfig, RefusesWhatItCannotCompute) {
  const auto expect_refusal = [](const char* model_type, const Json& changes, const char* text) {
    const std::string json = base_config(model_type, changes).dump();
    EXPECT_THAT(std::string(error_of([&] { parse_model_config(json, "config.json"); }).what()),
                HasSubstr(text));
  };
  expect_refusal("mixtral", {{"router_jitter_noise", 0.1}}, "'router_jitter_noise': 0.1 is not supported");
  expect_refusal("mixtral", {{"shared_expert_intermediate_size", 64}},
                 "'shared_expert_intermediate_size' is not supported");
  expect_refusal("mixtral", {{"num_experts_per_tok", 9}}, "num_experts_per_tok");
  expect_refusal("mixtral", {{"num_experts", 4}, {"num_local_experts", 8}}, "num_local_experts = 8");
  expect_refusal("qwen3_moe", {{"num_experts", 1025}}, "num_experts");
  expect_refusal("qwen3_moe", {{"use_sliding_window", true}}, "'use_sliding_window': true is not supported");
  expect_refusal("qwen3_moe", {{"mlp_only_layers", {0, 1, 2, 3}}}, "expected a layer with experts");
  expect_refusal("qwen3_moe", {{"router_aux_loss_coef", -1}}, "router_aux_loss_coef");
}

TEST(MixtureConfig, APresetComesBack) {
  ModelConfig preset = preset_config("qwen3-30b-a3b");
  const ModelConfig read = parse_model_config(write_model_config(preset, "bfloat16"), "config.json");
  EXPECT_EQ(read.family, "qwen3_moe");
  EXPECT_TRUE(read.experts == preset.experts);
}

}  // namespace
}  // namespace tessera
