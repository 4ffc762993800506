#include "formats/gguf/gguf_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "expect_error.h"
#include "formats/gguf/gguf_architecture.h"

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
  expect_error(ExitCode::kBadConfig, {"m: llama.cpp's qwen3", "attention biases"},
               [&] { gguf_model_fields(config, "m"); });
  config.o_bias = false;
  config.family = "qwen2";
  config.rope_scaling.type = RopeType::kLlama3;
  expect_error(ExitCode::kBadConfig, {"qwen2", "rope scaling 'llama3'"},
               [&] { gguf_model_fields(config, "m"); });
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

// Two layers of a family with options that all of them have.
ModelConfig gguf_config_of(const char* family) {
  ModelConfig config = preset_config("15m");
  config.family = family;
  config.num_hidden_layers = 2;
  config.sliding_window = {0, 0};
  config.tie_word_embeddings = false;
  return config;
}

ModelConfig gguf_gpt_oss() {
  ModelConfig config = gguf_config_of("gpt_oss");
  config.sliding_window = {128, 0};
  config.qkv_bias = config.o_bias = config.attention_sinks = true;
  config.experts = {4, 2, 96, true, 0, {true, true}, ClampedSwiglu{}};
  config.rope_scaling = {.type = RopeType::kYarn,
                         .factor = 32,
                         .original_max_position_embeddings = 4096,
                         .attention_factor = 0.1 * std::log(32) + 1,
                         .truncate = false};
  return config;
}

TEST(GgufModel, ExpertsHaveTheirFieldsAndSharedTensors) {
  ModelConfig config = gguf_config_of("qwen3_moe");
  config.experts = {8, 2, 48, true, 0, {true, true}};
  const auto fields = model_fields_of(config);
  EXPECT_EQ(fields.at("qwen3moe.expert_count"), GgufScalar(uint32_t{8}));
  EXPECT_EQ(fields.at("qwen3moe.expert_used_count"), GgufScalar(uint32_t{2}));
  EXPECT_EQ(fields.at("qwen3moe.expert_feed_forward_length"), GgufScalar(uint32_t{48}));
  EXPECT_EQ(gguf_tensor_name(config, "model.layers.1.mlp.experts.7.up_proj.weight"),
            "blk.1.ffn_up_exps.weight");
  EXPECT_EQ(gguf_tensor_name(config, "model.layers.1.mlp.gate.weight"), "blk.1.ffn_gate_inp.weight");
  config.family = "mixtral";
  EXPECT_FALSE(model_fields_of(config).contains("llama.expert_feed_forward_length"));
  EXPECT_EQ(gguf_tensor_name(config, "model.layers.0.block_sparse_moe.experts.3.w2.weight"),
            "blk.0.ffn_down_exps.weight");
  config.experts->norm_topk_prob = false;
  expect_error(ExitCode::kBadConfig, {"norm_topk_prob"}, [&] { gguf_model_fields(config, "m"); });
  config.experts->norm_topk_prob = true;
  config.experts->layers[0] = false;
  expect_error(ExitCode::kBadConfig, {"mlp_only_layers"}, [&] { gguf_model_fields(config, "m"); });
}

TEST(GgufModel, GptOssHasItsNames) {
  ModelConfig config = gguf_gpt_oss();
  const auto fields = model_fields_of(config);
  EXPECT_EQ(fields.at("gpt-oss.rope.scaling.original_context_length"), GgufScalar(uint32_t{4096}));
  EXPECT_EQ(fields.at("gpt-oss.attention.sliding_window"), GgufScalar(uint32_t{128}));
  EXPECT_FALSE(fields.contains("gpt-oss.rope.scaling.attn_factor"));
  EXPECT_THAT(gguf_differences(config), testing::ElementsAre(testing::HasSubstr("truncate")));
  const auto name_of = [&](const char* name) { return gguf_tensor_name(config, name); };
  EXPECT_EQ(name_of("model.layers.0.self_attn.sinks"), "blk.0.attn_sinks.weight");
  EXPECT_EQ(name_of("model.layers.0.post_attention_layernorm.weight"), "blk.0.post_attention_norm.weight");
  EXPECT_EQ(name_of("model.layers.0.mlp.router.bias"), "blk.0.ffn_gate_inp.bias");
  EXPECT_EQ(name_of("model.layers.0.mlp.experts.down_proj_bias"), "blk.0.ffn_down_exps.bias");
  const auto expect_refused = [](const char* what, auto change) {
    ModelConfig changed = gguf_gpt_oss();
    change(changed);
    expect_error(ExitCode::kBadConfig, {"m: llama.cpp's gpt-oss", what},
                 [&] { gguf_model_fields(changed, "m"); });
  };
  expect_refused("swiglu_limit 7", [](ModelConfig& c) { c.experts->fused->limit = 6; });
  expect_refused("beta_fast 32", [](ModelConfig& c) { c.rope_scaling.beta_fast = 16; });
  expect_refused("every 2th", [](ModelConfig& c) { c.sliding_window[1] = 128; });
  expect_refused("attention biases", [](ModelConfig& c) { c.qkv_bias = c.o_bias = false; });
  expect_refused("tie_word_embeddings", [](ModelConfig& c) { c.tie_word_embeddings = true; });
}

// llama.cpp multiplies 0.1 log(factor) + 1, or what yarn_log_multiplier makes of it, by attn_factor.
TEST(GgufModel, YarnHasItsMagnitude) {
  ModelConfig config = gguf_config_of("llama");
  config.rope_scaling = {.type = RopeType::kYarn, .factor = 4, .attention_factor = 1};
  EXPECT_NEAR(std::get<float>(model_fields_of(config).at("llama.rope.scaling.attn_factor")), 0.8782488, 1e-6);
  config.rope_scaling.truncate = false;
  expect_error(ExitCode::kBadConfig, {"llama", "truncate"}, [&] { gguf_model_fields(config, "m"); });
  config.rope_scaling.truncate = true;
  config.family = "ministral3";
  config.rope_scaling.mscale_all_dim = 1;
  config.query_scale_beta = 0.25;
  config.query_scale_positions = 8192;
  const auto fields = model_fields_of(config);
  EXPECT_FALSE(fields.contains("mistral3.rope.scaling.attn_factor"));
  EXPECT_EQ(fields.at("mistral3.rope.scaling.yarn_log_multiplier"), GgufScalar(1.0f));
  EXPECT_EQ(fields.at("mistral3.attention.temperature_scale"), GgufScalar(0.25f));
}

TEST(GgufModel, OtherFamiliesHaveTheirOptions) {
  ModelConfig granite = gguf_config_of("granite");
  granite.attention_scale = 0.5;
  granite.logits_scale = 0.125;
  EXPECT_EQ(model_fields_of(granite).at("granite.logit_scale"), GgufScalar(8.0f));
  EXPECT_EQ(model_fields_of(granite).at("granite.attention.scale"), GgufScalar(0.5f));
  EXPECT_EQ(num_reordered_heads(granite, "model.layers.0.self_attn.q_proj.weight"),
            granite.num_attention_heads);

  ModelConfig smollm3 = gguf_config_of("smollm3");
  smollm3.layer_rope = {LayerRope::kGlobal, LayerRope::kNone};
  expect_error(ExitCode::kBadConfig, {"smollm3", "every 4th"}, [&] { gguf_model_fields(smollm3, "m"); });

  ModelConfig helium = gguf_config_of("helium");
  helium.rope_interleaved = true;
  EXPECT_EQ(num_reordered_heads(helium, "model.layers.0.self_attn.q_proj.weight"), 0);

  ModelConfig phi3 = gguf_config_of("phi3");
  phi3.rotary_dim = 4;
  phi3.rope_scaling = {.type = RopeType::kLongRope,
                       .original_max_position_embeddings = 64,
                       .attention_factor = 1.25,
                       .short_factor = {1, 2},
                       .long_factor = {3, 4}};
  EXPECT_EQ(model_fields_of(phi3).at("phi3.rope.scaling.attn_factor"), GgufScalar(1.25f));
  EXPECT_EQ(model_fields_of(phi3).at("phi3.rope.dimension_count"), GgufScalar(uint32_t{4}));
  const std::vector<GgufRopeTensor> tensors = gguf_rope_tensors(phi3);
  ASSERT_EQ(tensors.size(), 2u);
  EXPECT_EQ(tensors[0].name, "rope_factors_long.weight");
  EXPECT_THAT(tensors[0].values, testing::ElementsAre(3, 4));
  EXPECT_THAT(tensors[1].values, testing::ElementsAre(1, 2));

  ModelConfig olmo3 = gguf_config_of("olmo3");
  olmo3.sliding_window = {16, 0};
  olmo3.layer_rope = {LayerRope::kLocal, LayerRope::kGlobal};
  olmo3.local_rope.theta = 7;
  expect_error(ExitCode::kBadConfig, {"olmo2", "same rope_theta"}, [&] { gguf_model_fields(olmo3, "m"); });
}

TEST(GgufModel, SizeLabelsHaveTwoDigits) {
  EXPECT_EQ(gguf_size_label(47'000'000'000, 45'000'000'000, 8), "8x7.6B");
  EXPECT_EQ(gguf_size_label(8'030'261'248), "8.0B");
  EXPECT_EQ(gguf_size_label(135'000'000), "135M");
  EXPECT_EQ(gguf_size_label(16'400), "16K");
  EXPECT_EQ(gguf_size_label(120), "0.12K");
}

}  // namespace
}  // namespace tessera
