#include "formats/huggingface/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "expect_error.h"
#include "formats/json.h"
#include "io/file.h"
#include "support/model_config_test_util.h"
#include "test_folder.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;

ModelConfig parse(const Json& json) { return parse_model_config(json.dump(), "config.json"); }

// The config and the log output.
std::pair<ModelConfig, std::string> parse_logged(const Json& json) {
  testing::internal::CaptureStderr();
  const ModelConfig config = parse(json);
  return {config, testing::internal::GetCapturedStderr()};
}

void expect_same(const ModelConfig& a, const ModelConfig& b) {
  EXPECT_EQ(a.family, b.family);
  EXPECT_EQ(a.vocab_size, b.vocab_size);
  EXPECT_EQ(a.hidden_size, b.hidden_size);
  EXPECT_EQ(a.intermediate_size, b.intermediate_size);
  EXPECT_EQ(a.num_hidden_layers, b.num_hidden_layers);
  EXPECT_EQ(a.num_attention_heads, b.num_attention_heads);
  EXPECT_EQ(a.num_key_value_heads, b.num_key_value_heads);
  EXPECT_EQ(a.head_dim, b.head_dim);
  EXPECT_EQ(a.max_position_embeddings, b.max_position_embeddings);
  EXPECT_EQ(a.rms_norm_eps, b.rms_norm_eps);
  EXPECT_EQ(a.rope_theta, b.rope_theta);
  EXPECT_EQ(a.rope_scaling.type, b.rope_scaling.type);
  EXPECT_EQ(a.rope_scaling.factor, b.rope_scaling.factor);
  EXPECT_EQ(a.rope_scaling.low_freq_factor, b.rope_scaling.low_freq_factor);
  EXPECT_EQ(a.rope_scaling.high_freq_factor, b.rope_scaling.high_freq_factor);
  EXPECT_EQ(a.rope_scaling.original_max_position_embeddings, b.rope_scaling.original_max_position_embeddings);
  EXPECT_EQ(a.tie_word_embeddings, b.tie_word_embeddings);
  EXPECT_EQ(a.qkv_bias, b.qkv_bias);
  EXPECT_EQ(a.o_bias, b.o_bias);
  EXPECT_EQ(a.mlp_bias, b.mlp_bias);
  EXPECT_EQ(a.qk_norm, b.qk_norm);
  EXPECT_EQ(a.initializer_range, b.initializer_range);
  EXPECT_EQ(a.sliding_window, b.sliding_window);
  EXPECT_EQ(a.bos_token_id, b.bos_token_id);
  EXPECT_EQ(a.eos_token_ids, b.eos_token_ids);
  EXPECT_EQ(a.pad_token_id, b.pad_token_id);
}

TEST(ModelConfig, AbsentFieldsTakeLlamasDefaults) {
  const ModelConfig config =
      parse(base_config("llama", {{"num_key_value_heads", nullptr}, {"rms_norm_eps", nullptr}}));
  EXPECT_EQ(config.family, "llama");
  EXPECT_EQ(config.num_key_value_heads, 8);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.max_position_embeddings, 2048);
  EXPECT_EQ(config.rms_norm_eps, 1e-6);
  EXPECT_EQ(config.rope_theta, 10000);
  EXPECT_EQ(config.rope_scaling.type, RopeType::kDefault);
  EXPECT_EQ(config.initializer_range, 0.02);
  EXPECT_FALSE(config.tie_word_embeddings || config.qkv_bias || config.o_bias || config.mlp_bias ||
               config.qk_norm);
  EXPECT_THAT(config.sliding_window, ElementsAre(0, 0, 0, 0));
  EXPECT_EQ(config.bos_token_id, 1);
  EXPECT_THAT(config.eos_token_ids, ElementsAre(2));
  EXPECT_EQ(config.pad_token_id, std::nullopt);
}

TEST(ModelConfig, AbsentFieldsTakeMistralsDefaults) {
  const ModelConfig config = parse(base_config("mistral", {{"num_key_value_heads", nullptr}}));
  EXPECT_EQ(config.family, "mistral");
  EXPECT_EQ(config.num_key_value_heads, 8);
  EXPECT_EQ(config.head_dim, 32);
  EXPECT_EQ(config.max_position_embeddings, 131072);
  EXPECT_THAT(config.sliding_window, ElementsAre(4096, 4096, 4096, 4096));
}

TEST(ModelConfig, AbsentFieldsTakeQwensDefaults) {
  const Json changes = {{"num_key_value_heads", nullptr}, {"num_attention_heads", 64}, {"bos_token_id", 7}};
  const ModelConfig qwen2 = parse(base_config("qwen2", changes));
  EXPECT_EQ(qwen2.num_key_value_heads, 32);
  EXPECT_EQ(qwen2.head_dim, 4);
  EXPECT_EQ(qwen2.max_position_embeddings, 32768);
  EXPECT_TRUE(qwen2.qkv_bias);
  EXPECT_FALSE(qwen2.o_bias || qwen2.qk_norm);
  EXPECT_EQ(qwen2.bos_token_id, 7);
  EXPECT_TRUE(qwen2.eos_token_ids.empty());
  EXPECT_THAT(qwen2.sliding_window, Each(0));
  const ModelConfig qwen3 = parse(base_config("qwen3", changes));
  EXPECT_EQ(qwen3.num_key_value_heads, 32);
  EXPECT_EQ(qwen3.head_dim, 128);
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.qkv_bias || qwen3.o_bias);
}

TEST(ModelConfig, NullKeyValueHeadsMeansAsManyAsQueryHeads) {
  for (const char* type : {"llama", "mistral", "qwen2", "qwen3"}) {
    std::string json = base_config(type, {{"num_key_value_heads", 2}}).dump();
    json.replace(json.find("\"num_key_value_heads\":2"), 23, "\"num_key_value_heads\":null");
    EXPECT_EQ(parse_model_config(json, "x").num_key_value_heads, 8) << type;
  }
}

TEST(ModelConfig, BiasesFollowTheFamily) {
  const Json biases = {{"attention_bias", true}, {"mlp_bias", true}};
  const ModelConfig llama = parse(base_config("llama", biases));
  EXPECT_TRUE(llama.qkv_bias && llama.o_bias && llama.mlp_bias);
  const auto [qwen3, qwen3_log] = parse_logged(base_config("qwen3", biases));
  EXPECT_TRUE(qwen3.qkv_bias && qwen3.o_bias);
  EXPECT_FALSE(qwen3.mlp_bias);
  EXPECT_THAT(qwen3_log, HasSubstr("'mlp_bias' has no effect for model_type 'qwen3'"));
  const auto [mistral, mistral_log] = parse_logged(base_config("mistral", biases));
  EXPECT_FALSE(mistral.qkv_bias || mistral.o_bias || mistral.mlp_bias);
  EXPECT_THAT(mistral_log, HasSubstr("'attention_bias' has no effect for model_type 'mistral'"));
}

TEST(ModelConfig, TheArchitectureAloneNamesTheFamily) {
  const Json json = base_config("llama", {{"model_type", nullptr}, {"architectures", {"Qwen3ForCausalLM"}}});
  EXPECT_EQ(parse(json).family, "qwen3");
}

TEST(ModelConfig, RopeIsReadInEverySpelling) {
  const Json linear = {{"type", "linear"}, {"factor", 2}};
  const ModelConfig legacy = parse(base_config("llama", {{"rope_theta", 500000}, {"rope_scaling", linear}}));
  EXPECT_EQ(legacy.rope_scaling.type, RopeType::kLinear);
  EXPECT_EQ(legacy.rope_scaling.factor, 2);
  EXPECT_EQ(legacy.rope_theta, 500000);

  const ModelConfig version4 =
      parse(base_config("llama", {{"rope_theta", 5e5}, {"rope_scaling", kLlama3Rope}}));
  EXPECT_EQ(version4.rope_scaling.type, RopeType::kLlama3);
  EXPECT_EQ(version4.rope_scaling.factor, 32);
  EXPECT_EQ(version4.rope_scaling.low_freq_factor, 1);
  EXPECT_EQ(version4.rope_scaling.high_freq_factor, 4);
  EXPECT_EQ(version4.rope_scaling.original_max_position_embeddings, 8192);

  Json parameters = kLlama3Rope;
  parameters["rope_theta"] = 5e5;
  expect_same(parse(base_config("llama", {{"rope_parameters", parameters}})), version4);
  const Json plain = {{"rope_type", "default"}, {"rope_theta", 1e6}};
  EXPECT_EQ(parse(base_config("llama", {{"rope_parameters", plain}})).rope_theta, 1e6);
  EXPECT_EQ(parse(base_config("llama", {{"rope_parameters", {{"rope_theta", 7.0}}}})).rope_theta, 7);
}

// Transformers 5.24 lets rope_scaling win over rope_parameters; here they must agree.
TEST(ModelConfig, RopeInBothSpellingsAgreesOrIsRefused) {
  const Json linear = {{"rope_type", "linear"}, {"factor", 2.0}};
  Json both = base_config("llama", {{"rope_theta", 1e4}, {"rope_scaling", linear}});
  both["rope_parameters"] = {
      {"rope_theta", 1e4}, {"type", "linear"}, {"factor", 2}, {"attention_factor", nullptr}};
  const auto [config, log] = parse_logged(both);
  EXPECT_EQ(config.rope_scaling.type, RopeType::kLinear);
  EXPECT_EQ(config.rope_scaling.factor, 2);
  EXPECT_EQ(log, "");
  Json empty = both;
  empty["rope_scaling"] = Json::object();
  EXPECT_EQ(parse(empty).rope_scaling, config.rope_scaling);
  empty["rope_scaling"] = nullptr;
  EXPECT_EQ(parse(empty).rope_scaling, config.rope_scaling);
  for (const Json& change : {Json{{"factor", 4}}, Json{{"rope_theta", 5e5}}, Json{{"type", "default"}}}) {
    Json other = both;
    other["rope_parameters"].update(change);
    expect_error(ExitCode::kBadData, {"'rope_scaling' and 'rope_parameters' contradict"},
                 [&] { parse(other); });
  }
}

TEST(ModelConfig, RopeFieldsOfOtherTypesHaveNoEffectAndNullIsAbsent) {
  Json parameters = {{"rope_type", "default"},
                     {"rope_theta", 1e4},
                     {"attention_factor", nullptr},
                     {"mrope_section", nullptr},
                     {"beta_fast", 32}};
  const auto [plain, log] = parse_logged(base_config("llama", {{"rope_parameters", parameters}}));
  EXPECT_EQ(plain.rope_scaling, RopeScaling{});
  EXPECT_THAT(log, HasSubstr("'rope_parameters.beta_fast' has no effect for the rope type 'default'"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
  // The field beside rope_scaling counts before the one in it, and max_position_embeddings without both.
  Json scaling = kLlama3Rope;
  EXPECT_EQ(parse(base_config("llama", {{"rope_scaling", scaling}, {"original_max_position_embeddings", 64}}))
                .rope_scaling.original_max_position_embeddings,
            64);
  scaling.erase("original_max_position_embeddings");
  EXPECT_EQ(parse(base_config("llama", {{"rope_scaling", scaling}, {"max_position_embeddings", 500}}))
                .rope_scaling.original_max_position_embeddings,
            500);
  const Json half = {{"type", "linear"}, {"factor", 0.5}};
  EXPECT_EQ(parse(base_config("llama", {{"rope_scaling", half}})).rope_scaling.factor, 0.5);
}

TEST(ModelConfig, WhatTransformersIgnoresIsNamed) {
  const auto expect_note = [](const Json& json, const std::string& note) {
    const auto [config, log] = parse_logged(json);
    EXPECT_THAT(log, HasSubstr(note));
    EXPECT_EQ(log.empty(), note.empty());
    return config;
  };
  expect_note(base_config("llama", {{"architectures", {"LlamaModel"}}}), "");
  expect_note(base_config("llama", {{"architectures", Json::array()}, {"pretraining_tp", 2}}), "");
  expect_note(
      base_config("llama", {{"architectures", {"LlamaForCausalLM", "LlamaForSequenceClassification"}}}),
      "'architectures': LlamaForSequenceClassification has no effect: model_type 'llama' decides");
  EXPECT_TRUE(expect_note(base_config("qwen2", {{"attention_bias", false}}),
                          "'attention_bias' has no effect for model_type 'qwen2'")
                  .qkv_bias);
  const ModelConfig tokens =
      expect_note(base_config("llama", {{"eos_token_id", {2, 1000}}, {"bos_token_id", 1001}}),
                  "'eos_token_id[1]': 1000 has no effect: ids are from 0 to vocab_size - 1 = 999");
  EXPECT_THAT(tokens.eos_token_ids, ElementsAre(2));
  EXPECT_EQ(tokens.bos_token_id, std::nullopt);
  const Json types = {"full_attention", "sliding_attention", "full_attention", "full_attention"};
  const ModelConfig mistral = parse(base_config("mistral", {{"sliding_window", 8}, {"layer_types", types}}));
  EXPECT_THAT(mistral.sliding_window, ElementsAre(0, 8, 0, 0));
  EXPECT_THAT(parse_model_config(write_model_config(mistral, "float32"), "x").sliding_window,
              ElementsAre(0, 8, 0, 0));
}

TEST(ModelConfig, WindowsFollowTheFamily) {
  EXPECT_THAT(parse(base_config("mistral", {{"sliding_window", 128}})).sliding_window, Each(128));
  std::string without = base_config("mistral", {{"sliding_window", 128}}).dump();
  without.replace(without.find("\"sliding_window\":128"), 20, "\"sliding_window\":null");
  EXPECT_THAT(parse_model_config(without, "x").sliding_window, ElementsAre(0, 0, 0, 0));

  const Json qwen = {{"sliding_window", 128}, {"use_sliding_window", true}, {"max_window_layers", 3}};
  EXPECT_THAT(parse(base_config("qwen2", qwen)).sliding_window, ElementsAre(0, 0, 0, 128));
  Json listed = qwen;
  listed["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention", "full_attention"};
  EXPECT_THAT(parse(base_config("qwen3", listed)).sliding_window, ElementsAre(128, 0, 128, 0));
  Json unused = qwen;
  unused["use_sliding_window"] = false;
  EXPECT_THAT(parse(base_config("qwen2", unused)).sliding_window, Each(0));

  const auto [llama, log] = parse_logged(base_config("llama", {{"sliding_window", 128}}));
  EXPECT_THAT(llama.sliding_window, Each(0));
  EXPECT_THAT(log, HasSubstr("'sliding_window' has no effect for model_type 'llama'"));
}

TEST(ModelConfig, TokensAreOneOrMany) {
  const ModelConfig many = parse(base_config("llama", {{"eos_token_id", {5, 7}}, {"pad_token_id", 0}}));
  EXPECT_THAT(many.eos_token_ids, ElementsAre(5, 7));
  EXPECT_EQ(many.pad_token_id, 0);
  EXPECT_EQ(parse(base_config("llama", {{"pad_token_id", -1}})).pad_token_id, std::nullopt);
  // Default ids beyond a small vocabulary are dropped.
  EXPECT_EQ(parse(base_config("llama", {{"vocab_size", 1}})).bos_token_id, std::nullopt);
}

TEST(ModelConfig, UnknownFieldsAreNamedAndHarmlessOnesAreNot) {
  const auto [config, log] = parse_logged(base_config(
      "llama",
      {{"mystery", 3}, {"use_cache", true}, {"transformers_version", "4.45.0"}, {"hidden_dropout", 0.0}}));
  EXPECT_THAT(log, HasSubstr("config.json: field 'mystery' is unknown and has no effect"));
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 1) << log;
}

// The published files, except for the order of the fields.
TEST(PublishedConfigs, AreReadWithoutAWarning) {
  struct Published {
    const char* json;
    int64_t head_dim;
  };
  const std::vector<Published> configs = {
      // Llama-3.2-1B
      {R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":128000,
           "eos_token_id":[128001,128008,128009],"head_dim":64,"hidden_act":"silu","hidden_size":2048,
           "initializer_range":0.02,"intermediate_size":8192,"max_position_embeddings":131072,"mlp_bias":false,
           "model_type":"llama","num_attention_heads":32,"num_hidden_layers":16,"num_key_value_heads":8,
           "pretraining_tp":1,"rms_norm_eps":1e-05,"rope_scaling":{"factor":32.0,"high_freq_factor":4.0,
           "low_freq_factor":1.0,"original_max_position_embeddings":8192,"rope_type":"llama3"},
           "rope_theta":500000.0,"tie_word_embeddings":true,"torch_dtype":"bfloat16",
           "transformers_version":"4.45.0.dev0","use_cache":true,"vocab_size":128256})",
       64},
      // Llama-2-7b
      {R"({"_name_or_path":"meta-llama/Llama-2-7b-hf","architectures":["LlamaForCausalLM"],"bos_token_id":1,
           "eos_token_id":2,"hidden_act":"silu","hidden_size":4096,"initializer_range":0.02,
           "intermediate_size":11008,"max_position_embeddings":4096,"model_type":"llama","num_attention_heads":32,
           "num_hidden_layers":32,"num_key_value_heads":32,"pretraining_tp":1,"rms_norm_eps":1e-05,
           "rope_scaling":null,"tie_word_embeddings":false,"torch_dtype":"float16",
           "transformers_version":"4.31.0.dev0","use_cache":true,"vocab_size":32000})",
       128},
      // Mistral-7B-v0.1
      {R"({"architectures":["MistralForCausalLM"],"bos_token_id":1,"eos_token_id":2,"hidden_act":"silu",
           "hidden_size":4096,"initializer_range":0.02,"intermediate_size":14336,"max_position_embeddings":32768,
           "model_type":"mistral","num_attention_heads":32,"num_hidden_layers":32,"num_key_value_heads":8,
           "rms_norm_eps":1e-05,"rope_theta":10000.0,"sliding_window":4096,"tie_word_embeddings":false,
           "torch_dtype":"bfloat16","transformers_version":"4.34.0.dev0","use_cache":true,"vocab_size":32000})",
       128},
      // Qwen2.5-0.5B
      {R"({"architectures":["Qwen2ForCausalLM"],"attention_dropout":0.0,"bos_token_id":151643,"eos_token_id":151643,
           "hidden_act":"silu","hidden_size":896,"initializer_range":0.02,"intermediate_size":4864,
           "max_position_embeddings":32768,"max_window_layers":24,"model_type":"qwen2","num_attention_heads":14,
           "num_hidden_layers":24,"num_key_value_heads":2,"rms_norm_eps":1e-06,"rope_theta":1000000.0,
           "sliding_window":32768,"tie_word_embeddings":true,"torch_dtype":"bfloat16",
           "transformers_version":"4.40.1","use_cache":true,"use_mrope":false,"use_sliding_window":false,
           "vocab_size":151936})",
       64},
      // Qwen3-0.6B
      {R"({"architectures":["Qwen3ForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":151643,
           "eos_token_id":151645,"head_dim":128,"hidden_act":"silu","hidden_size":1024,"initializer_range":0.02,
           "intermediate_size":3072,"max_position_embeddings":40960,"max_window_layers":28,"model_type":"qwen3",
           "num_attention_heads":16,"num_hidden_layers":28,"num_key_value_heads":8,"rms_norm_eps":1e-06,
           "rope_scaling":null,"rope_theta":1000000,"sliding_window":null,"tie_word_embeddings":true,
           "torch_dtype":"bfloat16","transformers_version":"4.51.0","use_cache":true,"use_sliding_window":false,
           "vocab_size":151936})",
       128},
      // SmolLM2-135M
      {R"({"architectures":["LlamaForCausalLM"],"attention_bias":false,"attention_dropout":0.0,"bos_token_id":0,
           "eos_token_id":0,"hidden_act":"silu","hidden_size":576,"initializer_range":0.041666666666666664,
           "intermediate_size":1536,"is_llama_config":true,"max_position_embeddings":8192,"model_type":"llama",
           "num_attention_heads":9,"num_hidden_layers":30,"num_key_value_heads":3,"pretraining_tp":1,
           "rms_norm_eps":1e-05,"rope_interleaved":false,"rope_scaling":null,"rope_theta":100000,
           "tie_word_embeddings":true,"torch_dtype":"bfloat16","transformers_version":"4.40.1","use_cache":true,
           "vocab_size":49152})",
       64},
  };
  for (const Published& published : configs) {
    testing::internal::CaptureStderr();
    const ModelConfig config = parse_model_config(published.json, "config.json");
    EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
    EXPECT_EQ(config.head_dim, published.head_dim);
    EXPECT_EQ(config.sliding_window.size(), static_cast<size_t>(config.num_hidden_layers));
    expect_same(parse_model_config(write_model_config(config, "bfloat16"), "written"), config);
  }
}

TEST(WriteModelConfig, KeepsWhatItReadInEveryFamilyAndSpelling) {
  const Json qwen_window = {{"sliding_window", 128}, {"use_sliding_window", true}, {"max_window_layers", 3}};
  Json parameters = kLlama3Rope;
  parameters["rope_theta"] = 5e5;
  const std::vector<Json> configs = {
      base_config("llama"),
      base_config("llama",
                  {{"rope_scaling", kLlama3Rope}, {"tie_word_embeddings", true}, {"eos_token_id", {5, 7}}}),
      base_config("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 4}}}, {"head_dim", 64}}),
      base_config("llama", {{"rope_parameters", parameters}, {"attention_bias", true}, {"mlp_bias", true}}),
      base_config("llama", {{"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 3e4}}}}),
      base_config("mistral", {{"pad_token_id", 3}}),
      base_config("qwen2", {{"initializer_range", 0.05}}),
      base_config("qwen2", qwen_window),
      base_config("qwen3", {{"attention_bias", true}, {"sliding_window", 64}}),
      base_config("qwen3", qwen_window),
  };
  for (const Json& json : configs) {
    const ModelConfig config = parse(json);
    const std::string written = write_model_config(config, "float32");
    SCOPED_TRACE(written);
    expect_same(parse_model_config(written, "written"), config);
    ModelConfig fresh = config;
    fresh.json.clear();
    expect_same(parse_model_config(write_model_config(fresh, "float32"), "fresh"), config);
  }
}

TEST(WriteModelConfig, KeepsHarmlessFieldsTheirOrderAndTheSpelling) {
  const std::string version4 =
      R"({"_name_or_path": "x", "model_type": "llama", "vocab_size": 10, "hidden_size": 8, "intermediate_size": 8,
          "num_hidden_layers": 1, "num_attention_heads": 2, "use_cache": false, "custom": [1], "torch_dtype": "float16"})";
  testing::internal::CaptureStderr();
  ModelConfig config = parse_model_config(version4, "x");
  testing::internal::GetCapturedStderr();
  config.vocab_size = 20;
  const std::string written = write_model_config(config, "bfloat16");
  const Json json = parse_json(written, "written");
  EXPECT_EQ(json["use_cache"], false);
  EXPECT_EQ(json["custom"], Json::array({1}));
  EXPECT_EQ(json["vocab_size"], 20);
  EXPECT_EQ(json["torch_dtype"], "bfloat16");
  EXPECT_TRUE(json["rope_scaling"].is_null());
  EXPECT_TRUE(written.starts_with("{\n  \"_name_or_path\": \"x\",\n  \"model_type\"")) << written;
  EXPECT_LT(written.find("use_cache"), written.find("custom"));

  const ModelConfig version5 = parse(base_config(
      "llama",
      {{"rope_parameters", {{"rope_theta", 5e5}}}, {"torch_dtype", nullptr}, {"dtype", "bfloat16"}}));
  const Json again = parse_json(write_model_config(version5, "float32"), "written");
  EXPECT_EQ(again["dtype"], "float32");
  EXPECT_FALSE(again.contains("torch_dtype") || again.contains("rope_theta") ||
               again.contains("rope_scaling"));
  EXPECT_EQ(again["rope_parameters"]["rope_theta"], 5e5);
}

TEST(WriteGenerationConfig, HoldsTheTokens) {
  const Json json = parse_json(
      write_generation_config(parse(base_config("llama", {{"eos_token_id", {5, 7}}, {"pad_token_id", 3}}))),
      "x");
  EXPECT_EQ(json["bos_token_id"], 1);
  EXPECT_EQ(json["eos_token_id"], Json::array({5, 7}));
  EXPECT_EQ(json["pad_token_id"], 3);
}

int64_t num_parameters(const ModelConfig& config) {
  const int64_t q_width = config.num_attention_heads * config.head_dim;
  const int64_t kv_width = config.num_key_value_heads * config.head_dim;
  const int64_t layer = 2 * config.hidden_size * (q_width + kv_width) +
                        3 * config.hidden_size * config.intermediate_size + 2 * config.hidden_size;
  return config.vocab_size * config.hidden_size * (config.tie_word_embeddings ? 1 : 2) +
         config.num_hidden_layers * layer + config.hidden_size;
}

TEST(ModelPresets, HaveThePublishedSizes) {
  EXPECT_EQ(num_parameters(preset_config("llama3-8b")), 8'030'261'248);
  EXPECT_EQ(num_parameters(preset_config("llama3.2-3b")), 3'212'749'824);
  EXPECT_EQ(num_parameters(preset_config("llama3.2-1b")), 1'235'814'400);
  const auto with_vocabulary = [](const char* name, int64_t vocab_size) {
    ModelConfig config = preset_config(name);
    EXPECT_EQ(config.vocab_size, 0) << "small presets take the tokenizer's vocabulary";
    config.vocab_size = vocab_size;
    return static_cast<double>(num_parameters(config)) / 1e6;
  };
  EXPECT_NEAR(with_vocabulary("15m", 8192), 15.7, 0.1);
  EXPECT_NEAR(with_vocabulary("60m", 32000), 60, 2);
  EXPECT_NEAR(with_vocabulary("160m", 32000), 160, 2);
}

TEST(ModelPresets, AreReadBackAsWritten) {
  for (const std::string& name : preset_names()) {
    SCOPED_TRACE(name);
    ModelConfig config = preset_config(name);
    if (config.vocab_size == 0) config.vocab_size = 8192;
    expect_same(parse_model_config(write_model_config(config, "bfloat16"), name), config);
  }
}

TEST(ModelPresets, AnUnknownNameListsTheKnownOnes) {
  expect_error(ExitCode::kUsage,
               {"unknown preset '7b'", "15m, 60m, 160m, llama3.2-1b, llama3.2-3b, llama3-8b"},
               [] { preset_config("7b"); });
}

TEST(ReferenceFolders, ConfigsAreRead) {
  for (const fs::path& folder : reference_cases()) {
    const std::string name = folder.filename();
    SCOPED_TRACE(name);
    const ModelConfig config = read_model_config(folder);
    EXPECT_EQ(config.rope_theta, name == "llama-wide-heads" ? 10000 : 500000);
    EXPECT_EQ(config.num_attention_heads * config.head_dim == config.hidden_size, name != "llama-wide-heads");
    EXPECT_EQ(config.tie_word_embeddings, name.find("tied") != std::string::npos);
    expect_same(parse_model_config(write_model_config(config, "float32"), "written"), config);
  }
}

}  // namespace
}  // namespace tessera
