#include "formats/gguf/gguf_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "expect_error.h"

namespace tessera {
namespace {

std::map<std::string, GgufScalar> model_fields_of(const ModelConfig& config) {
  std::map<std::string, GgufScalar> fields;
  for (const GgufField& field : gguf_model_fields(config, "m")) {
    EXPECT_TRUE(fields.emplace(field.key, std::get<GgufScalar>(field.value)).second) << field.key;
  }
  return fields;
}

TEST(GgufModel, LlamaHasTheConvertersFields) {
  const auto fields = model_fields_of(preset_config("llama3.2-1b"));
  EXPECT_EQ(fields.at("general.architecture"), GgufScalar(std::string("llama")));
  EXPECT_EQ(fields.at("llama.block_count"), GgufScalar(uint32_t{16}));
  EXPECT_EQ(fields.at("llama.attention.head_count_kv"), GgufScalar(uint32_t{8}));
  EXPECT_EQ(fields.at("llama.rope.dimension_count"), GgufScalar(uint32_t{64}));
  EXPECT_EQ(fields.at("llama.rope.freq_base"), GgufScalar(500000.0f));
  EXPECT_EQ(fields.at("llama.vocab_size"), GgufScalar(uint32_t{128256}));
  EXPECT_FALSE(fields.contains("llama.rope.scaling.type"));
}

TEST(GgufModel, FamiliesHaveTheirArchitectures) {
  ModelConfig config = preset_config("15m");
  config.rope_scaling = {.type = RopeType::kLinear, .factor = 4};
  config.family = "mistral";
  EXPECT_EQ(model_fields_of(config).at("llama.rope.scaling.factor"), GgufScalar(4.0f));
  config.family = "qwen2";
  EXPECT_EQ(model_fields_of(config).at("qwen2.rope.scaling.type"), GgufScalar(std::string("linear")));
  config.family = "qwen3";
  EXPECT_FALSE(model_fields_of(config).contains("qwen3.rope.dimension_count"));
}

TEST(GgufModel, WhatLlamaCppLacksIsRefused) {
  ModelConfig config = preset_config("15m");
  config.family = "qwen3";
  config.o_bias = true;
  expect_error(ExitCode::kBadConfig, {"m: ", "attention biases", "Qwen3"},
               [&] { gguf_model_fields(config, "m"); });
  config.family = "qwen2";
  config.rope_scaling.type = RopeType::kLlama3;
  expect_error(ExitCode::kBadConfig, {"rope scaling", "Qwen2"}, [&] { gguf_model_fields(config, "m"); });
}

TEST(GgufModel, TensorsAreRenamed) {
  const ModelConfig config = preset_config("15m");
  const auto name_of = [&](const char* name) { return gguf_tensor_name(config, name); };
  EXPECT_EQ(name_of("model.embed_tokens.weight"), "token_embd.weight");
  EXPECT_EQ(name_of("lm_head.weight"), "output.weight");
  EXPECT_EQ(name_of("model.norm.weight"), "output_norm.weight");
  EXPECT_EQ(name_of("model.layers.0.self_attn.k_proj.bias"), "blk.0.attn_k.bias");
  EXPECT_EQ(name_of("model.layers.17.self_attn.q_norm.weight"), "blk.17.attn_q_norm.weight");
  EXPECT_EQ(name_of("model.layers.17.mlp.down_proj.weight"), "blk.17.ffn_down.weight");
  EXPECT_EQ(name_of("model.layers.5.post_attention_layernorm.weight"), "blk.5.ffn_norm.weight");
  expect_error(ExitCode::kInternal, {"lm_tail.weight"}, [&] { name_of("lm_tail.weight"); });
}

// Six layers of Gemma 3, as its reader makes them.
ModelConfig gguf_gemma3() {
  ModelConfig config = preset_config("15m");
  config.family = "gemma3_text";
  config.num_hidden_layers = 6;
  config.sliding_window = {512, 512, 512, 512, 512, 0};
  config.norm = NormKind::kRmsPlusOne;
  config.norm_placement = NormPlacement::kBoth;
  config.attention_scale = 1 / std::sqrt(static_cast<double>(config.head_dim));
  config.tie_word_embeddings = true;
  config.rope_theta = 1e6;
  config.rope_scaling = {.type = RopeType::kLinear, .factor = 8};
  return config;
}

TEST(GgufModel, GemmaHasItsNormsAndWindow) {
  ModelConfig config = gguf_gemma3();
  const auto fields = model_fields_of(config);
  EXPECT_EQ(fields.at("gemma3.attention.sliding_window"), GgufScalar(uint32_t{512}));
  EXPECT_EQ(fields.at("gemma3.rope.freq_base"), GgufScalar(1e6f));
  EXPECT_EQ(fields.at("gemma3.rope.scaling.factor"), GgufScalar(8.0f));
  EXPECT_TRUE(fields.contains("gemma3.attention.layer_norm_rms_epsilon"));
  EXPECT_FALSE(fields.contains("gemma3.attn_logit_softcapping"));
  const auto name_of = [&](const char* name) { return gguf_tensor_name(config, name); };
  EXPECT_EQ(name_of("model.layers.0.post_attention_layernorm.weight"), "blk.0.post_attention_norm.weight");
  EXPECT_EQ(name_of("model.layers.0.pre_feedforward_layernorm.weight"), "blk.0.ffn_norm.weight");
  EXPECT_EQ(name_of("model.layers.0.post_feedforward_layernorm.weight"), "blk.0.post_ffw_norm.weight");
  EXPECT_EQ(gguf_norm_offset(config), 1.0f);
  EXPECT_EQ(gguf_norm_offset(preset_config("15m")), 0.0f);
}

TEST(GgufModel, WhatLlamaCppsGemmaLacksIsRefused) {
  const auto expect_refused = [](const char* what, auto change) {
    ModelConfig config = gguf_gemma3();
    change(config);
    expect_error(ExitCode::kBadConfig, {"m: llama.cpp's gemma3", what},
                 [&] { gguf_model_fields(config, "m"); });
  };
  expect_refused("biases", [](ModelConfig& config) { config.o_bias = true; });
  expect_refused("soft caps", [](ModelConfig& config) { config.attention_softcap = 50; });
  expect_refused("query_pre_attn_scalar", [](ModelConfig& config) { config.attention_scale = 1; });
  expect_refused("every 6th", [](ModelConfig& config) { config.sliding_window[5] = 512; });
  expect_refused("rope_theta 10000", [](ModelConfig& config) { config.local_rope.theta = 5e4; });
  expect_refused("rope scaling", [](ModelConfig& config) { config.rope_scaling.type = RopeType::kYarn; });
}

TEST(GgufModel, Cohere2HasItsFields) {
  ModelConfig config = preset_config("15m");
  config.family = "cohere2";
  config.num_hidden_layers = 4;
  config.sliding_window = {64, 64, 64, 0};
  config.norm = NormKind::kLayer;
  config.logits_scale = 0.25;
  config.tie_word_embeddings = true;
  const auto fields = model_fields_of(config);
  EXPECT_EQ(fields.at("cohere2.logit_scale"), GgufScalar(0.25f));
  EXPECT_EQ(fields.at("cohere2.rope.scaling.type"), GgufScalar(std::string("none")));
  EXPECT_TRUE(fields.contains("cohere2.attention.layer_norm_epsilon"));
  EXPECT_FALSE(fields.contains("cohere2.attention.layer_norm_rms_epsilon"));
  EXPECT_EQ(num_reordered_heads(config, "model.layers.0.self_attn.q_proj.weight"), 0);
  config.tie_word_embeddings = false;
  expect_error(ExitCode::kBadConfig, {"cohere2", "lm_head"}, [&] { gguf_model_fields(config, "m"); });
}

TEST(GgufModel, OnlyLlamasQueriesAndKeysAreReordered) {
  ModelConfig config = preset_config("llama3.2-1b");
  EXPECT_EQ(num_reordered_heads(config, "model.layers.0.self_attn.q_proj.weight"), 32);
  EXPECT_EQ(num_reordered_heads(config, "model.layers.0.self_attn.k_proj.bias"), 8);
  EXPECT_EQ(num_reordered_heads(config, "model.layers.0.self_attn.v_proj.weight"), 0);
  config.family = "qwen2";
  EXPECT_EQ(num_reordered_heads(config, "model.layers.0.self_attn.q_proj.weight"), 0);
}

// Llama 3.2 1B: wavelengths up to 2048 keep their frequency, from 8192 on it is divided by 32.
TEST(GgufModel, RopeDivisorsAreThoseOfLlama3) {
  const std::vector<float> divisors = gguf_rope_divisors(preset_config("llama3.2-1b"));
  ASSERT_EQ(divisors.size(), 32u);
  EXPECT_EQ(divisors.front(), 1.0f);
  EXPECT_EQ(divisors[14], 1.0f);          // wavelength 1954
  EXPECT_NEAR(divisors[15], 1.65, 0.01);  // wavelength 2945
  EXPECT_EQ(divisors[18], 32.0f);         // wavelength 10086
  EXPECT_EQ(divisors.back(), 32.0f);
  EXPECT_TRUE(gguf_rope_divisors(preset_config("15m")).empty());
}

TEST(GgufModel, SizeLabelsHaveTwoDigits) {
  EXPECT_EQ(gguf_size_label(8'030'261'248), "8.0B");
  EXPECT_EQ(gguf_size_label(135'000'000), "135M");
  EXPECT_EQ(gguf_size_label(16'400), "16K");
  EXPECT_EQ(gguf_size_label(120), "0.12K");
}

}  // namespace
}  // namespace tessera
