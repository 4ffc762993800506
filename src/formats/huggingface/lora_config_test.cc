#include "formats/huggingface/lora_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/log.h"

namespace tessera {
namespace {

// The file that PEFT 0.17 writes.
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
  EXPECT_EQ(config.target_modules.names(), (std::vector<std::string>{"o_proj", "v_proj"}));
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
  // The order of patterns and what selects modules, too.
  config.rank_pattern = {{"v_proj", 2}, {"layers.1.self_attn.v_proj", 4}, {"a|b", 3}};
  config.target_modules = ModuleSelection::expression(".*\\.v_proj");
  config.exclude_modules = {"o_proj"};
  const LoraConfig expression = parse_lora_config(write_lora_config(config), "c");
  EXPECT_EQ(expression.rank_pattern, config.rank_pattern);
  EXPECT_EQ(expression.target_modules.json(), ".*\\.v_proj");
  EXPECT_EQ(expression.exclude_modules.names(), config.exclude_modules.names());
  config.target_modules = {"v_proj"};
  config.layers_to_transform = {3, 1};
  config.layers_pattern = {"layers"};
  const LoraConfig layers = parse_lora_config(write_lora_config(config), "d");
  EXPECT_EQ(layers.layers_to_transform, config.layers_to_transform);
  EXPECT_EQ(layers.layers_pattern, config.layers_pattern);
}

TEST(LoraConfig, AbsentFieldsHavePeftsDefaults) {
  const LoraConfig config =
      parse_lora_config(R"({"peft_type": "LORA", "target_modules": "all-linear"})", "a");
  EXPECT_EQ(config.r, 8);
  EXPECT_EQ(config.lora_alpha, 8);
  EXPECT_EQ(config.lora_dropout, 0);
  EXPECT_EQ(config.target_modules.names(), lora_module_names());
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
      {"target_modules", "\".*(attn.*\"", ExitCode::kBadConfig,
       "field 'target_modules': not a regular expression"},
      {"target_modules", "[]", ExitCode::kBadData, "field 'target_modules': expected a list"},
      {"target_modules", "[\"\"]", ExitCode::kBadData, "expected the name of a module"},
      {"target_modules", "null", ExitCode::kBadData, "expected a list of module names, a regular expression"},
      {"rank_pattern", "{\"*q\": 2}", ExitCode::kBadConfig, "field 'rank_pattern': not a regular expression"},
      {"layers_to_transform", "[\"1\"]", ExitCode::kBadData, "field 'layers_to_transform[0]': expected"},
      {"layers_pattern", "\"layers\"", ExitCode::kBadConfig, "needs layers_to_transform"},
      {"init_lora_weights", "\"new\"", ExitCode::kBadData, "field 'init_lora_weights': expected true, false"},
      {"task_type", "\"SEQ_CLS\"", ExitCode::kBadConfig, "expected CAUSAL_LM"},
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

// The fields of LoraConfig in PEFT 0.21.2 with values that are not their defaults: each is read, without
// effect for a reason that is logged, a record of something else, or refused.
TEST(LoraConfig, EveryFieldOfPeftIsHonouredNamedOrRefused) {
  const std::set<std::string> read = {"base_model_name_or_path",
                                      "revision",
                                      "r",
                                      "lora_alpha",
                                      "lora_dropout",
                                      "use_rslora",
                                      "target_modules",
                                      "exclude_modules",
                                      "layers_to_transform",
                                      "rank_pattern",
                                      "alpha_pattern",
                                      "velora_config"};
  const std::set<std::string> record = {"task_type",      "peft_type",     "auto_mapping",     "peft_version",
                                        "inference_mode", "megatron_core", "qalora_group_size"};
  const std::set<std::string> warned = {"ensure_weight_tying", "fan_in_fan_out", "loftq_config",
                                        "eva_config",          "corda_config",   "lora_ga_config",
                                        "runtime_config",      "of_peft_0_99"};
  const std::set<std::string> refused = {"bias",
                                         "modules_to_save",
                                         "init_lora_weights",
                                         "layers_pattern",
                                         "megatron_config",
                                         "trainable_token_indices",
                                         "use_dora",
                                         "alora_invocation_tokens",
                                         "use_qalora",
                                         "monteclora_config",
                                         "layer_replication",
                                         "lora_bias",
                                         "target_parameters",
                                         "use_bdlora",
                                         "arrow_config",
                                         "kasa_config"};
  const nlohmann::json fields = nlohmann::json::parse(R"({
    "task_type": "CAUSAL_LM", "peft_type": "LORA", "auto_mapping": {"base_model_class": "X"},
    "peft_version": "0.21.2", "base_model_name_or_path": "other", "revision": "v2", "inference_mode": false,
    "r": 4, "target_modules": ["k_proj"], "exclude_modules": ["v_proj"], "lora_alpha": 3, "lora_dropout": 0.25,
    "fan_in_fan_out": true, "bias": "lora_only", "use_rslora": true, "modules_to_save": ["embed_tokens"],
    "init_lora_weights": "pissa", "layers_to_transform": [0], "layers_pattern": "layers",
    "rank_pattern": {"o_proj": 3}, "alpha_pattern": {"v_proj": 3}, "megatron_config": {"a": 1},
    "megatron_core": "other", "trainable_token_indices": [1], "loftq_config": {"loftq_bits": 4},
    "eva_config": {"rho": 2.0}, "corda_config": {"a": 1}, "lora_ga_config": {"scale": "stable"},
    "use_dora": true, "velora_config": {"num_groups": 64}, "alora_invocation_tokens": [1], "use_qalora": true,
    "qalora_group_size": 32, "monteclora_config": {"a": 1}, "layer_replication": [[0, 1]],
    "runtime_config": {"ephemeral_gpu_offload": true}, "lora_bias": true, "target_parameters": ["x"],
    "use_bdlora": {"nblocks": 2}, "arrow_config": {"top_k": 3}, "kasa_config": {"beta": 1},
    "ensure_weight_tying": true, "of_peft_0_99": 5})");
  EXPECT_EQ(fields.size(), 43U);
  const std::string before = write_lora_config(parse_lora_config(kByPeft, "a"));
  for (const auto& [name, value] : fields.items()) {
    nlohmann::json json = by_peft();
    json[name] = value;
    if (name == "revision") json["base_model_name_or_path"] = "org/name";
    LogTap tap;
    std::string outcome = "record";
    try {
      const LoraConfig config = parse_lora_config(json.dump(), "every field");
      if (write_lora_config(config) != before || !config.other_training.empty()) outcome = "read";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig) << error.what();
      EXPECT_THAT(error.what(), testing::HasSubstr(name));
      outcome = "refused";
    }
    const std::vector<std::string> lines = tap.take();
    if (!lines.empty()) outcome = "warned";
    for (const std::string& line : lines) {
      EXPECT_THAT(line, testing::HasSubstr("field '" + name + "' has no effect: "));
    }
    EXPECT_EQ(outcome, read.contains(name)      ? "read"
                       : warned.contains(name)  ? "warned"
                       : refused.contains(name) ? "refused"
                       : record.contains(name)  ? "record"
                                                : "unlisted")
        << name;
  }
}

TEST(LoraTensorNames, AreThoseInPeftsFiles) {
  EXPECT_EQ(lora_a_name("model.layers.0.mlp.up_proj"),
            "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight");
  EXPECT_EQ(lora_b_name("model.layers.0.mlp.up_proj"),
            "base_model.model.model.layers.0.mlp.up_proj.lora_B.weight");
}

}  // namespace
}  // namespace tessera
