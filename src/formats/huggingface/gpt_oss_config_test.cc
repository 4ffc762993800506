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

ModelConfig gpt_oss(const Json& changes = Json::object()) {
  return parse_model_config(base_config("gpt_oss", changes).dump(), "config.json");
}

TEST(GptOssConfig, AbsentFieldsAreThoseOfTransformers) {
  const ModelConfig config = gpt_oss();
  const MixtureOfExperts& experts = *config.experts;
  EXPECT_EQ(experts.num_experts, 128);
  EXPECT_EQ(experts.num_experts_per_tok, 4);
  EXPECT_EQ(experts.moe_intermediate_size, 640);
  EXPECT_EQ(experts.router_aux_loss_coef, 0);
  EXPECT_EQ(experts.fused, (ClampedSwiglu{.alpha = 1.702f, .limit = 7}));
  EXPECT_TRUE(config.attention_sinks && config.qkv_bias && config.o_bias);
  EXPECT_THAT(config.sliding_window, ElementsAre(128, 0, 128, 0));
  EXPECT_EQ(config.rope_theta, 150000);
  EXPECT_EQ(config.max_position_embeddings, 131072);
  EXPECT_EQ(config.rope_scaling.type, RopeType::kYarn);
  EXPECT_EQ(config.rope_scaling.factor, 32);
  EXPECT_EQ(config.rope_scaling.original_max_position_embeddings, 4096);
  EXPECT_FALSE(config.rope_scaling.truncate);
}

TEST(GptOssConfig, FieldsAreRead) {
  const ModelConfig config =
      gpt_oss({{"swiglu_alpha", 1.5},
               {"swiglu_limit", 4},
               {"attention_bias", false},
               {"num_local_experts", 6},
               {"num_experts_per_tok", 3},
               {"output_router_logits", true},
               {"router_aux_loss_coef", 0.5},
               {"layer_types", {"full_attention", "full_attention", "sliding_attention", "full_attention"}}});
  EXPECT_EQ(config.experts->fused, (ClampedSwiglu{.alpha = 1.5f, .limit = 4}));
  EXPECT_FALSE(config.qkv_bias || config.o_bias);
  EXPECT_EQ(config.experts->num_experts, 6);
  EXPECT_EQ(config.experts->num_experts_per_tok, 3);
  EXPECT_EQ(config.experts->router_aux_loss_coef, 0.5);
  EXPECT_THAT(config.sliding_window, ElementsAre(0, 0, 128, 0));
}

// The released files say that their experts are in MXFP4; what is written are numbers.
TEST(GptOssConfig, TheFormOfTheFilesIsNotWritten) {
  const Json mxfp4 = {{"quant_method", "mxfp4"}, {"modules_to_not_convert", {"lm_head"}}};
  const ModelConfig config =
      gpt_oss({{"quantization_config", mxfp4}, {"experts_per_token", 4}, {"initial_context_length", 4096}});
  const Json written = Json::parse(write_model_config(config, "bfloat16"));
  EXPECT_FALSE(written.contains("quantization_config"));
  EXPECT_EQ(written["model_type"], "gpt_oss");
  EXPECT_EQ(parse_model_config(written.dump(), "config.json").experts, config.experts);
}

TEST(GptOssConfig, RefusesWhatItCannotCompute) {
  const auto expect_refusal = [](const Json& changes, const char* text) {
    EXPECT_THAT(std::string(error_of([&] { gpt_oss(changes); }).what()), HasSubstr(text));
  };
  expect_refusal({{"quantization_config", {{"quant_method", "fp8"}}}},
                 "'quantization_config.quant_method': \"fp8\" is not supported, expected mxfp4");
  expect_refusal({{"quantization_config", {{"quant_method", "mxfp4"}, {"bits", 4}}}},
                 "'quantization_config.bits': 4 is not supported");
  expect_refusal({{"quantization_config", {{"dequantize", true}}}}, "expected mxfp4");
  expect_refusal({{"hidden_act", "gelu"}}, "'hidden_act': 'gelu' is not supported");
  expect_refusal({{"swiglu_limit", 0}}, "swiglu_limit");
  expect_refusal({{"swiglu_alpha", -1}}, "swiglu_alpha");
  expect_refusal({{"num_experts_per_tok", 129}}, "num_experts_per_tok");
  expect_refusal({{"swiglu_beta", 1}}, "'swiglu_beta' is not supported");
  expect_refusal({{"norm_topk_prob", true}}, "'norm_topk_prob' is not supported");
}

}  // namespace
}  // namespace tessera
