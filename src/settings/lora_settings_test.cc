#include "settings/derived.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "settings/config_file.h"
#include "support/settings/arguments_test_support.h"

namespace tessera {
namespace {

using testing::HasSubstr;

using LoraArguments = ArgumentsTest;

std::string refused_config(const RunSpec& spec) {
  try {
    lora_config_of(spec.lora, spec.model);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadConfig);
    return error.what();
  }
  return "accepted";
}

TEST_F(LoraArguments, AreThoseOfPeftAndLlamaFactory) {
  give("peft", "lora");
  give("lora_r", "4");
  give("lora_dropout", "0");
  give("lora_target", "q_proj,v_proj");
  give("rank_pattern", R"({"v_proj": 2})");
  resolve();
  const LoraConfig config = lora_config_of(spec_.lora, spec_.model).value();
  EXPECT_EQ(config.r, 4);
  EXPECT_EQ(config.lora_alpha, 8);
  EXPECT_EQ(config.lora_dropout, 0);
  EXPECT_EQ(config.target_modules.names(), (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(config.adapter_of("model.layers.0.self_attn.v_proj")->rank, 2);
}

TEST_F(LoraArguments, SelectModulesAsPeftDoes) {
  give("finetuning_type", "lora");
  give("lora_target", R"(.*\.(1|3)\.self_attn\.[qv]_proj{1,1})");
  give("exclude_modules", "v_proj");
  resolve();
  const LoraConfig expression = lora_config_of(spec_.lora, spec_.model).value();
  EXPECT_TRUE(expression.adapter_of("model.layers.3.self_attn.q_proj"));
  EXPECT_FALSE(expression.adapter_of("model.layers.3.self_attn.v_proj"));
  EXPECT_FALSE(expression.adapter_of("model.layers.2.self_attn.q_proj"));
  spec_.lora.targets = {"q_proj"};
  spec_.lora.layers_to_transform = {"0,4", "2"};
  spec_.lora.layers_pattern = {"layers"};
  const LoraConfig layers = lora_config_of(spec_.lora, spec_.model).value();
  EXPECT_EQ(layers.layers_to_transform, (std::vector<int64_t>{0, 4, 2}));
  EXPECT_TRUE(layers.adapter_of("model.layers.4.self_attn.q_proj"));
  EXPECT_FALSE(layers.adapter_of("model.layers.1.self_attn.q_proj"));
}

TEST_F(LoraArguments, TheOrderOfPatternsIsThatOfTheFile) {
  const char* json = R"({"alpha_pattern": {"q_proj": 4, "layers.1.self_attn.q_proj": 64}})";
  const char* yaml = "alpha_pattern:\n  q_proj: 4\n  layers.1.self_attn.q_proj: 64\n";
  for (const ConfigSyntax syntax : {ConfigSyntax::kJson, ConfigSyntax::kYaml}) {
    RunSettings spec;
    FlagTable table;
    declare_training_flags(&table, &spec);
    spec.lora.finetuning_type = FinetuningType::kLora;
    apply_config_text(syntax == ConfigSyntax::kJson ? json : yaml, syntax, "file", &table);
    EXPECT_EQ(
        lora_config_of(spec.lora, spec.model).value().adapter_of("model.layers.1.self_attn.q_proj")->scale,
        0.5);
  }
}

TEST_F(LoraArguments, PatternsAreReadOnceAndRecordedAsTheyWereGiven) {
  const std::string ranks = R"({"v_proj": 2, "up_proj":16})", alphas = R"({"q_proj": 0.5})";
  give("rank_pattern", ranks);
  give("alpha_pattern", alphas);
  EXPECT_EQ(spec_.lora.rank_pattern,
            (std::vector<std::pair<std::string, int64_t>>{{"v_proj", 2}, {"up_proj", 16}}));
  EXPECT_EQ(spec_.lora.alpha_pattern, (std::vector<std::pair<std::string, double>>{{"q_proj", 0.5}}));
  EXPECT_EQ(training_arguments(spec_).at("rank_pattern"), ranks);
  EXPECT_EQ(training_arguments(spec_).at("alpha_pattern"), alphas);
  give("rank_pattern", "");
  EXPECT_TRUE(spec_.lora.rank_pattern.empty());
}

TEST_F(LoraArguments, WrongPatternsAreRefused) {
  const std::pair<const char*, const char*> cases[] = {
      {"{q: 3}", "rank_pattern: expected a JSON object"},
      {"[1]", "rank_pattern: expected a JSON object"},
      {R"({"q_proj": 0})", "rank_pattern.q_proj': expected an integer from 1"},
      {R"({"*q": 2})", "field 'rank_pattern': not a regular expression"}};
  for (const auto& [text, message] : cases) {
    try {
      give("rank_pattern", text);
      ADD_FAILURE() << text << " was accepted";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig);
      EXPECT_THAT(error.what(), HasSubstr(message));
    }
  }
}

TEST_F(LoraArguments, WithoutSenseAreRefused) {
  give("lora_rank", "4");
  EXPECT_EQ(contradiction(), "lora_rank: needs finetuning_type lora, found full");
  give("finetuning_type", "lora");
  spec_.lora.layers_to_transform = {"1", "two"};
  EXPECT_THAT(refused_config(spec_), HasSubstr("layers_to_transform: expected numbers of layers"));
  spec_.lora.layers_to_transform.clear();
  give("adapter_name_or_path", "out");
  EXPECT_EQ(contradiction(), "lora_rank: adapter_config.json of out decides; leave it out");
}

}  // namespace
}  // namespace tessera
