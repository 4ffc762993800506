#include "formats/huggingface/lora_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/error.h"

namespace tessera {
namespace {

// As PEFT 0.17 writes it.
constexpr const char* kByPeft = R"({
  "alpha_pattern": {"o_proj": 4}, "auto_mapping": null, "base_model_name_or_path": "models/small", "bias": "none",
  "corda_config": null, "eva_config": null, "exclude_modules": null, "fan_in_fan_out": false,
  "inference_mode": true, "init_lora_weights": true, "layer_replication": null, "layers_pattern": null,
  "layers_to_transform": null, "loftq_config": {}, "lora_alpha": 16, "lora_bias": false, "lora_dropout": 0.05,
  "megatron_config": null, "megatron_core": "megatron.core", "modules_to_save": null, "peft_type": "LORA",
  "qalora_group_size": 16, "r": 8, "rank_pattern": {"^model.layers.0.self_attn.o_proj": 2, "v_proj": 16},
  "revision": null, "target_modules": ["o_proj", "v_proj"], "target_parameters": null,
  "task_type": "CAUSAL_LM", "trainable_token_indices": null, "use_dora": false, "use_qalora": false,
  "use_rslora": false})";

nlohmann::json by_peft() { return nlohmann::json::parse(kByPeft); }

TEST(LoraConfig, IsReadAsPeftWritesIt) {
  const LoraConfig config = parse_lora_config(kByPeft, "a");
  EXPECT_EQ(config.base_model_name_or_path, "models/small");
  EXPECT_EQ(config.r, 8);
  EXPECT_EQ(config.lora_alpha, 16);
  EXPECT_EQ(config.lora_dropout, 0.05);
  EXPECT_EQ(config.target_modules, (std::vector<std::string>{"o_proj", "v_proj"}));
}

TEST(LoraConfig, ModulesAndTheirRanksFollowPeftsRules) {
  LoraConfig config = parse_lora_config(kByPeft, "a");
  const auto expect = [&](const char* module, int64_t rank, double scale) {
    const auto adapter = config.adapter_of(module);
    ASSERT_TRUE(adapter) << module;
    EXPECT_EQ(adapter->rank, rank) << module;
    EXPECT_DOUBLE_EQ(adapter->scale, scale) << module;
  };
  expect("model.layers.0.self_attn.o_proj", 2, 4.0 / 2);
  expect("model.layers.1.self_attn.o_proj", 8, 4.0 / 8);
  expect("model.layers.1.self_attn.v_proj", 16, 16.0 / 16);
  EXPECT_FALSE(config.adapter_of("model.layers.1.self_attn.q_proj"));
  EXPECT_FALSE(config.adapter_of("model.layers.1.self_attn.own_proj"));
  config.use_rslora = true;
  expect("model.layers.1.self_attn.v_proj", 16, 16.0 / 4);
  config.target_modules = {"layers.1.self_attn.v_proj"};
  EXPECT_FALSE(config.adapter_of("model.layers.0.self_attn.v_proj"));
  EXPECT_FALSE(config.adapter_of("model.layers.11.self_attn.v_proj"));
  expect("model.layers.1.self_attn.v_proj", 16, 16.0 / 4);
}

TEST(LoraConfig, TheRevisionOfABaseOnTheHubIsAFieldOfItsOwn) {
  nlohmann::json json = by_peft();
  json["base_model_name_or_path"] = "org/name";
  json["revision"] = "refs/pr/3";
  const LoraConfig config = parse_lora_config(json.dump(), "a");
  EXPECT_EQ(config.base_model_name_or_path, "org/name@refs/pr/3");
  const nlohmann::json written = nlohmann::json::parse(write_lora_config(config));
  EXPECT_EQ(written["base_model_name_or_path"], "org/name");
  EXPECT_EQ(written["revision"], "refs/pr/3");
  json["revision"] = "main";
  EXPECT_EQ(parse_lora_config(json.dump(), "a").base_model_name_or_path, "org/name");
  // A folder has no revisions.
  LoraConfig local = config;
  local.base_model_name_or_path = "/models/org/name@v2";
  EXPECT_EQ(nlohmann::json::parse(write_lora_config(local))["base_model_name_or_path"],
            "/models/org/name@v2");
}

TEST(LoraConfig, WhatIsWrittenIsReadAgain) {
  LoraConfig config = parse_lora_config(kByPeft, "a");
  config.use_rslora = true;
  config.lora_alpha = 2.5;
  const LoraConfig again = parse_lora_config(write_lora_config(config), "b");
  EXPECT_EQ(write_lora_config(again), write_lora_config(config));
  EXPECT_EQ(again.rank_pattern, config.rank_pattern);
  EXPECT_EQ(again.alpha_pattern, config.alpha_pattern);
  EXPECT_EQ(again.lora_alpha, 2.5);
  EXPECT_TRUE(again.use_rslora);
}

TEST(LoraConfig, AbsentFieldsHavePeftsDefaults) {
  const LoraConfig config =
      parse_lora_config(R"({"peft_type": "LORA", "target_modules": "all-linear"})", "a");
  EXPECT_EQ(config.r, 8);
  EXPECT_EQ(config.lora_alpha, 8);
  EXPECT_EQ(config.lora_dropout, 0);
  EXPECT_EQ(config.target_modules, lora_module_names());
}

TEST(LoraConfig, WhatIsWrongOrMissingHereIsNamed) {
  struct Case {
    const char* field;
    const char* value;
    ExitCode code;
    const char* message;
  };
  const Case cases[] = {
      {"peft_type", "\"IA3\"", ExitCode::kBadConfig, "a: field 'peft_type': 'IA3' is not supported"},
      {"peft_type", "null", ExitCode::kBadData, "a: field 'peft_type': expected"},
      {"use_dora", "true", ExitCode::kBadConfig,
       "a: field 'use_dora': true is not supported, expected false"},
      {"bias", "\"all\"", ExitCode::kBadConfig, "field 'bias': \"all\" is not supported, expected \"none\""},
      {"modules_to_save", "[\"lm_head\"]", ExitCode::kBadConfig, "field 'modules_to_save'"},
      {"init_lora_weights", "\"pissa_niter_4\"", ExitCode::kBadConfig, "changes the base model"},
      {"init_lora_weights", "\"OLoRA\"", ExitCode::kBadConfig, "changes the base model"},
      {"kasa_config", R"({"beta": 0.0001})", ExitCode::kBadConfig, "expected null"},
      {"r", "0", ExitCode::kBadData, "field 'r': expected"},
      {"r", "1e9", ExitCode::kBadData, "field 'r': expected"},
      {"lora_alpha", "-1", ExitCode::kBadData, "field 'lora_alpha': expected a number above 0"},
      {"lora_dropout", "1", ExitCode::kBadData, "field 'lora_dropout': expected a number from 0 to below 1"},
      {"target_modules", "\".*attn.*\"", ExitCode::kBadData, "regular expressions are not supported"},
      {"target_modules", "[]", ExitCode::kBadData, "field 'target_modules': expected a list"},
      {"target_modules", "[\"a b\"]", ExitCode::kBadData, "expected the name of a module"},
      {"rank_pattern", "{\".*q\": 2}", ExitCode::kBadData, "regular expressions are not supported"},
      {"rank_pattern", "{\"q_proj\": \"two\"}", ExitCode::kBadData, "field 'rank_pattern.q_proj': expected"},
  };
  for (const Case& wrong : cases) {
    nlohmann::json json = by_peft();
    json[wrong.field] = nlohmann::json::parse(wrong.value);
    try {
      parse_lora_config(json.dump(), "a");
      ADD_FAILURE() << wrong.field << " " << wrong.value;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), wrong.code) << error.what();
      EXPECT_THAT(error.what(), testing::HasSubstr(wrong.message));
    }
  }
  EXPECT_THROW(parse_lora_config("[]", "a"), Error);
  EXPECT_THROW(parse_lora_config("{", "a"), Error);
}

TEST(LoraTensorNames, AreThoseInPeftsFiles) {
  EXPECT_EQ(lora_a_name("model.layers.0.mlp.up_proj"),
            "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight");
  EXPECT_EQ(lora_b_name("model.layers.0.mlp.up_proj"),
            "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight");
}

}  // namespace
}  // namespace tessera
