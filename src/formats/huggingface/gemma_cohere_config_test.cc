// config.json of Gemma 2, Gemma 3 and Cohere 2.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "formats/huggingface/model_config.h"
#include "support/model_config_test_util.h"

namespace tessera {
namespace {

ModelConfig parsed_as(const char* model_type, const Json& changes = Json::object()) {
  return parse_model_config(base_config(model_type, changes).dump(), "config.json");
}

void expect_refused(const char* model_type, const Json& changes, std::vector<std::string> fragments) {
  fragments.emplace_back("config.json");
  expect_error(ExitCode::kBadConfig, fragments, [&] { parsed_as(model_type, changes); });
}

TEST(Gemma2Config, HasTheDefaultsOfTransformers) {
  const ModelConfig config = parsed_as("gemma2");
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.attention_scale, 1.0 / 16);
  EXPECT_EQ(config.attention_softcap, 50);
  EXPECT_EQ(config.logits_softcap, 30);
  EXPECT_EQ(config.embedding_scale, 16);
  EXPECT_THAT(config.sliding_window, testing::ElementsAre(4096, 0, 4096, 0));
  EXPECT_EQ(config.activation, Activation::kGatedGeluTanh);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.pad_token_id, 0);
}

TEST(Gemma2Config, NullMeansNoSoftCap) {
  const char* json = R"({"model_type":"gemma2","vocab_size":1000,"hidden_size":256,"intermediate_size":640,
      "num_hidden_layers":2,"num_attention_heads":8,"attn_logit_softcapping":null,"final_logit_softcapping":7})";
  const ModelConfig config = parse_model_config(json, "config.json");
  EXPECT_EQ(config.attention_softcap, 0);
  EXPECT_EQ(config.logits_softcap, 7);
  expect_error(ExitCode::kBadData, {"attn_logit_softcapping", "above 0"}, [] {
    parsed_as("gemma2", {{"attn_logit_softcapping", 0}});
  });
}

TEST(Gemma3Config, LayersWithAWindowHaveARotaryEmbeddingOfTheirOwn) {
  const Json sizes = {{"num_hidden_layers", 7}, {"sliding_window", 512}, {"query_pre_attn_scalar", 64}};
  Json old_spelling = sizes, new_spelling = sizes;
  old_spelling.update({{"rope_theta", 5e5},
                       {"rope_local_base_freq", 2e4},
                       {"sliding_window_pattern", 3},
                       {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8}}}});
  const Json of_global = {{"rope_type", "linear"}, {"factor", 8}, {"rope_theta", 5e5}};
  new_spelling.update({{"rope_parameters",
                        {{"full_attention", of_global},
                         {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}}}},
                       {"layer_types",
                        {"sliding_attention", "sliding_attention", "full_attention", "sliding_attention",
                         "sliding_attention", "full_attention", "sliding_attention"}}});
  for (const Json& spelling : {old_spelling, new_spelling}) {
    const ModelConfig config = parsed_as("gemma3_text", spelling);
    EXPECT_THAT(config.sliding_window, testing::ElementsAre(512, 512, 0, 512, 512, 0, 512));
    EXPECT_EQ(config.layer_rope.at(1), LayerRope::kLocal);
    EXPECT_EQ(config.layer_rope.at(2), LayerRope::kGlobal);
    EXPECT_EQ(config.rope_theta, 5e5);
    EXPECT_EQ(config.rope_scaling.factor, 8);
    EXPECT_EQ(config.local_rope, Rope{2e4});
    EXPECT_EQ(config.attention_scale, 0.125);
    EXPECT_EQ(config.attention_softcap, 0);
    EXPECT_TRUE(config.qk_norm);
  }
}

// As in the files of the 4B model, which leave out what has Transformers' default.
TEST(Gemma3Config, IsTheTextOfAModelWithImages) {
  const char* json =
      R"({"model_type":"gemma3","eos_token_id":[1,106],"vision_config":{"model_type":"siglip_vision_model"},
      "text_config":{"model_type":"gemma3_text","hidden_size":2560,"intermediate_size":10240,"num_hidden_layers":34,
      "rope_scaling":{"factor":8.0,"rope_type":"linear"},"sliding_window":1024}})";
  const ModelConfig config = parse_model_config(json, "config.json");
  EXPECT_EQ(config.family, "gemma3_text");
  EXPECT_EQ(config.vocab_size, 262208);
  EXPECT_EQ(config.num_attention_heads, 8);
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.rope_scaling.factor, 8);
  EXPECT_EQ(config.local_rope, Rope{1e4});
  EXPECT_THAT(config.eos_token_ids, testing::ElementsAre(1, 106));
}

TEST(Cohere2Config, OnlyLayersWithAWindowRotate) {
  const ModelConfig config = parsed_as("cohere2", {{"layer_norm_eps", 1e-4}, {"logit_scale", 0.25}});
  EXPECT_THAT(config.sliding_window, testing::ElementsAre(4096, 4096, 4096, 0));
  EXPECT_EQ(config.layer_rope.at(0), LayerRope::kGlobal);
  EXPECT_EQ(config.layer_rope.at(3), LayerRope::kNone);
  EXPECT_TRUE(config.parallel_blocks && config.rope_interleaved);
  EXPECT_EQ(config.norm, NormKind::kLayer);
  EXPECT_EQ(config.rms_norm_eps, 1e-4);
  EXPECT_EQ(config.logits_scale, 0.25);
}

TEST(GemmaAndCohereConfig, RefuseWhatWouldChangeTheNumbers) {
  expect_refused("gemma2", {{"use_bidirectional_attention", true}}, {"use_bidirectional_attention"});
  expect_refused("gemma3_text", {{"hidden_activation", "silu"}}, {"hidden_activation", "silu"});
  expect_refused("gemma3_text", {{"altup_num_inputs", 4}}, {"altup_num_inputs"});
  expect_refused("cohere2", {{"use_qk_norm", true}}, {"use_qk_norm"});
  expect_refused("cohere2", {{"head_dim", 64}}, {"head_dim", "expected", "32"});
}

}  // namespace
}  // namespace tessera
