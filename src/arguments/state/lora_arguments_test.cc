#include "arguments/state/lora_arguments.h"

#include <gmock/gmock.h>

#include "support/arguments_test_support.h"

namespace tessera {
namespace {

using testing::HasSubstr;

using LoraArguments = ArgumentsTest;

std::string refused_config(const TrainingArguments& args) {
  try {
    lora_config_of(args);
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
  const LoraConfig config = lora_config_of(args_).value();
  EXPECT_EQ(config.r, 4);
  EXPECT_EQ(config.lora_alpha, 8);
  EXPECT_EQ(config.lora_dropout, 0);
  EXPECT_EQ(config.target_modules, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(config.adapter_of("model.layers.0.self_attn.v_proj")->rank, 2);
}

TEST_F(LoraArguments, WithoutSenseAreRefused) {
  give("lora_rank", "4");
  EXPECT_EQ(contradiction(), "lora_rank: needs finetuning_type lora, found full");
  give("finetuning_type", "lora");
  args_.rank_pattern = R"({"q": 3})";
  EXPECT_THAT(refused_config(args_),
              HasSubstr("rank_pattern: expected names of modules that end in one of q_proj"));
  args_.rank_pattern = "{q: 3}";
  EXPECT_THAT(refused_config(args_), HasSubstr("rank_pattern: expected a JSON object"));
  args_.rank_pattern = R"({"q_proj": 0})";
  EXPECT_THAT(refused_config(args_), HasSubstr("rank_pattern.q_proj': expected an integer from 1"));
  args_.rank_pattern.clear();
  give("adapter_name_or_path", "out");
  EXPECT_EQ(contradiction(), "lora_rank: adapter_config.json of out decides; leave it out");
}

}  // namespace
}  // namespace tessera
