#include "model/llama/llama_tensors.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "base/error.h"
#include "model/families/families.h"

namespace tessera {
namespace {

// Sizes not divisible by any alignment, with every optional tensor present.
ModelConfig odd_config() {
  ModelConfig config;
  config.vocab_size = 331;
  config.hidden_size = 72;
  config.intermediate_size = 37;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 5;
  config.num_key_value_heads = 1;
  config.head_dim = 14;
  config.qkv_bias = true;
  config.o_bias = true;
  config.mlp_bias = true;
  config.qk_norm = true;
  return config;
}

int64_t end_of(const Parameter& parameter) { return parameter.offset + parameter.num_elements; }

TEST(ParameterLayout, FusedTensorsAreContiguousAndBlocksAligned) {
  const ParameterLayout layout = parameter_layout(odd_config());
  for (int64_t layer = 0; layer < 3; ++layer) {
    const auto at = [&](const char* suffix) -> const Parameter& {
      return layout.at(layer_parameter_name(layer, suffix));
    };
    for (const char* kind : {"weight", "bias"}) {
      const auto& q = at((std::string("self_attn.q_proj.") + kind).c_str());
      const auto& k = at((std::string("self_attn.k_proj.") + kind).c_str());
      const auto& v = at((std::string("self_attn.v_proj.") + kind).c_str());
      EXPECT_EQ(q.offset % kParameterAlignment, 0) << q.name;
      EXPECT_EQ(k.offset, end_of(q)) << k.name;
      EXPECT_EQ(v.offset, end_of(k)) << v.name;
      const auto& gate = at((std::string("mlp.gate_proj.") + kind).c_str());
      const auto& up = at((std::string("mlp.up_proj.") + kind).c_str());
      EXPECT_EQ(gate.offset % kParameterAlignment, 0) << gate.name;
      EXPECT_EQ(up.offset, end_of(gate)) << up.name;
    }
  }
}

TEST(ParameterLayout, RangesAreOrderedDisjointAndGapsBelowOneAlignment) {
  const ParameterLayout layout = parameter_layout(odd_config());
  int64_t end = 0;
  int64_t total = 0;
  int64_t group = 0;
  for (const Parameter& parameter : layout.parameters()) {
    EXPECT_GE(parameter.offset, end) << parameter.name;
    EXPECT_LT(parameter.offset - end, kParameterAlignment) << parameter.name;
    EXPECT_GE(parameter.group, group) << parameter.name;
    end = end_of(parameter);
    total += parameter.num_elements;
    group = parameter.group;
  }
  EXPECT_EQ(group, 4);
  EXPECT_EQ(layout.num_parameters(), total);
  EXPECT_GE(layout.num_elements(), end);
  EXPECT_EQ(layout.num_elements() % kParameterAlignment, 0);
}

TEST(ParameterLayout, NamesAndShapesAreThoseOfHuggingFace) {
  ModelConfig config = odd_config();
  config.num_hidden_layers = 1;
  const ParameterLayout layout = parameter_layout(config);
  const std::map<std::string, std::vector<int64_t>> expected = {
      {"model.embed_tokens.weight", {331, 72}},
      {"model.layers.0.input_layernorm.weight", {72}},
      {"model.layers.0.self_attn.q_proj.weight", {70, 72}},
      {"model.layers.0.self_attn.k_proj.weight", {14, 72}},
      {"model.layers.0.self_attn.v_proj.weight", {14, 72}},
      {"model.layers.0.self_attn.q_proj.bias", {70}},
      {"model.layers.0.self_attn.k_proj.bias", {14}},
      {"model.layers.0.self_attn.v_proj.bias", {14}},
      {"model.layers.0.self_attn.q_norm.weight", {14}},
      {"model.layers.0.self_attn.k_norm.weight", {14}},
      {"model.layers.0.self_attn.o_proj.weight", {72, 70}},
      {"model.layers.0.self_attn.o_proj.bias", {72}},
      {"model.layers.0.post_attention_layernorm.weight", {72}},
      {"model.layers.0.mlp.gate_proj.weight", {37, 72}},
      {"model.layers.0.mlp.up_proj.weight", {37, 72}},
      {"model.layers.0.mlp.gate_proj.bias", {37}},
      {"model.layers.0.mlp.up_proj.bias", {37}},
      {"model.layers.0.mlp.down_proj.weight", {72, 37}},
      {"model.layers.0.mlp.down_proj.bias", {72}},
      {"model.norm.weight", {72}},
      {"lm_head.weight", {331, 72}},
  };
  std::map<std::string, std::vector<int64_t>> found;
  for (const Parameter& parameter : layout.parameters()) found[parameter.name] = parameter.shape;
  EXPECT_EQ(found, expected);
}

TEST(ParameterLayout, OptionalTensorsAppearOnlyWhenAsked) {
  ModelConfig config = odd_config();
  config.qkv_bias = config.o_bias = config.mlp_bias = config.qk_norm = false;
  config.tie_word_embeddings = true;
  const ParameterLayout layout = parameter_layout(config);
  EXPECT_EQ(layout.parameters().size(), 1u + 3u * 9u + 1u);
  EXPECT_EQ(layout.find("lm_head.weight"), nullptr);
  EXPECT_EQ(layout.find("model.layers.0.self_attn.q_proj.bias"), nullptr);
  EXPECT_THROW(layout.at("lm_head.weight"), Error);
}

TEST(ParameterLayout, NormsAndBiasesHaveNoWeightDecay) {
  const ParameterLayout layout = parameter_layout(odd_config());
  for (const Parameter& parameter : layout.parameters()) {
    const bool is_matrix = parameter.shape.size() == 2;  // every other tensor is a norm or a bias
    EXPECT_EQ(parameter.weight_decay, is_matrix) << parameter.name;
  }
}

TEST(ParameterLayout, Llama8BHasItsPublishedParameterCount) {
  ModelConfig config;
  config.vocab_size = 128256;
  config.hidden_size = 4096;
  config.intermediate_size = 14336;
  config.num_hidden_layers = 32;
  config.num_attention_heads = 32;
  config.num_key_value_heads = 8;
  config.head_dim = 128;
  EXPECT_EQ(parameter_layout(config).num_parameters(), 8'030'261'248);
}

}  // namespace
}  // namespace tessera
