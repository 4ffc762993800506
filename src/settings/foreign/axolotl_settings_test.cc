#include "settings/foreign/axolotl_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/log.h"
#include "support/settings/foreign_datasets_fixture.h"

namespace tessera {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class AxolotlSettingsTest : public ForeignDatasetsTest {
 protected:
  RunSettings with(const std::string& lines) const {
    return apply("base_model: m\nlearning_rate: 1e-4\n" + lines + kData);
  }
  std::string refusal_with(const std::string& lines) const {
    return refusal("base_model: m\n" + lines + kData);
  }
  std::vector<std::string> warnings_with(const std::string& lines) const {
    LogTap tap;
    with(lines);
    return tap.take();
  }

  static constexpr const char* kData = "datasets:\n  - {path: a.jsonl, type: alpaca}\n";
};

TEST_F(AxolotlSettingsTest, ItsDefaultsApply) {
  const RunSpec spec = with("");
  EXPECT_EQ(spec.data.max_length, 512);
  EXPECT_EQ(spec.batch.rows_per_device, 1);
  EXPECT_EQ(spec.evaluation.rows_per_device, 1);
  EXPECT_EQ(spec.batch.num_epochs, 1);
  EXPECT_EQ(schedule_type(spec.schedule.form), ScheduleType::kCosine);
  EXPECT_EQ(spec.schedule.warmup_ratio, 0.03);
  EXPECT_EQ(spec.saving.strategy, SaveStrategy::kEpoch);
  EXPECT_EQ(spec.saving.total_limit, 4);
  EXPECT_EQ(spec.data.excess_length_strategy, ExcessLength::kDrop);
  EXPECT_FALSE(spec.data.train_on_prompt);
}

TEST_F(AxolotlSettingsTest, ItsNamesSetOurFlags) {
  const RunSpec spec = with(
      "sequence_len: 64\nmicro_batch_size: 3\nnum_epochs: 2\nsample_packing: true\nlr_scheduler: linear\n"
      "warmup_steps: 1\nsaves_per_epoch: 4\nval_set_size: 0.1\nevals_per_epoch: 5\nbf16: auto\n"
      "gradient_checkpointing: offload\ntrain_on_inputs: true\nexcess_length_strategy: truncate\n"
      "dataset_prepared_path: prepared\n");
  EXPECT_EQ(spec.data.max_length, 64);
  EXPECT_EQ(spec.evaluation.rows_per_device, 3);
  EXPECT_TRUE(spec.data.packing);
  EXPECT_EQ(spec.data.packing_strategy, PackingStrategy::kBfd) << "rows are held out before they are packed";
  EXPECT_FALSE(spec.objective.average_tokens_across_devices);
  EXPECT_EQ(with("sample_packing: true\n").data.packing_strategy, PackingStrategy::kBfdSplit);
  EXPECT_EQ(spec.schedule.warmup_steps, 2) << "Axolotl makes two of one";
  EXPECT_EQ(spec.saving.strategy, SaveStrategy::kSteps);
  EXPECT_EQ(spec.saving.steps, 0.125);
  EXPECT_EQ(spec.evaluation.strategy, IntervalStrategy::kSteps);
  EXPECT_EQ(spec.evaluation.steps, 0.1);
  EXPECT_TRUE(spec.evaluation.on_start);
  EXPECT_EQ(spec.data.validation_split_percentage, 10);
  EXPECT_TRUE(spec.placement.gradient_checkpointing);
  EXPECT_TRUE(spec.data.train_on_prompt);
  EXPECT_EQ(spec.data.excess_length_strategy, ExcessLength::kTruncate);
  EXPECT_EQ(spec.data.cache_dir, "prepared");
}

TEST_F(AxolotlSettingsTest, AdaptersNeedWhatAxolotlNeeds) {
  const RunSpec spec =
      with("adapter: qlora\nload_in_4bit: true\nlora_r: 8\nlora_alpha: 16\nlora_target_linear: true\n");
  EXPECT_EQ(spec.lora.finetuning_type, FinetuningType::kLora);
  EXPECT_TRUE(spec.base.load_in_4bit);
  EXPECT_EQ(spec.base.double_quant, true);
  EXPECT_THAT(spec.lora.targets, ElementsAre("all"));
  EXPECT_THAT(
      with("adapter: lora\nlora_r: 8\nlora_alpha: 16\nlora_target_modules:\n  - q_proj\n").lora.targets,
      ElementsAre("q_proj"));
  EXPECT_EQ(with("adapter:\nlora_r: 8\nlora_alpha: 16\n").lora.finetuning_type, FinetuningType::kFull);
  EXPECT_THAT(warnings_with("lora_r: 8\n"), Contains(HasSubstr("lora_r has no effect: adapter is not set")));
  EXPECT_THAT(refusal_with("adapter: qlora\n"), HasSubstr("expected load_in_4bit true beside qlora"));
  EXPECT_THAT(refusal_with("adapter: lora\nlora_r: 8\nlora_alpha: 16\n"),
              HasSubstr("expected lora_target_modules or lora_target_linear"));
  EXPECT_THAT(refusal_with("load_in_8bit: true\n"), HasSubstr("expected adapter lora or qlora"));
}

TEST_F(AxolotlSettingsTest, WhatHasNoEffectIsNamedWithItsReason) {
  const std::vector<std::string> warnings = warnings_with(
      "wandb_project: p\nwandb_name: n\ntf32: false\nliger_rope: true\nplugins:\n  - "
      "axolotl.integrations.liger.LigerPlugin\n");
  EXPECT_THAT(warnings, Contains(HasSubstr("wandb_project, wandb_name have no effect: this service")));
  EXPECT_THAT(warnings, Contains(HasSubstr("liger_rope has no effect: kernels")));
  EXPECT_THAT(warnings, Not(Contains(HasSubstr("tf32"))));
}

TEST_F(AxolotlSettingsTest, WhatWouldChangeTheResultIsRefused) {
  EXPECT_THAT(refusal_with("unfrozen_parameters:\n  - lm_head\n"),
              HasSubstr("unfrozen_parameters: training only part of the weights is not supported"));
  EXPECT_THAT(refusal_with("rl: dpo\n"), HasSubstr("rl: training is always on the next token"));
  EXPECT_THAT(refusal_with("tokens:\n  - <x>\n"),
              HasSubstr("tokens: tokens are those of the tokenizer's files"));
  EXPECT_THAT(refusal_with("plugins:\n  - axolotl.integrations.kd.KDPlugin\n"), HasSubstr("kd.KDPlugin"));
  EXPECT_THAT(refusal_with("train_on_eos: last\n"), HasSubstr("it belongs into an entry of datasets"));
  EXPECT_THAT(refusal_with("base_modell: x\n"), HasSubstr("unknown setting 'base_modell'"));
  EXPECT_EQ(with("rl:\ndebug:\ntokens: []\nunfrozen_parameters: null\n").data.max_length, 512)
      << "null means not set";
}

TEST_F(AxolotlSettingsTest, OfSpecialTokensThatDifferEosIsFollowedAndOthersAreRefused) {
  std::filesystem::create_directory(folder_.path() / "model");
  folder_.write("model/tokenizer_config.json", R"({"eos_token": {"content": "</s>"}})");
  folder_.write("model/tokenizer.json", R"({"added_tokens": [{"content": "<x>", "special": true}]})");
  const std::string start =
      "base_model: " + (folder_.path() / "model").string() + "\nlearning_rate: 1e-4\n" + kData;
  const RunSpec same =
      apply(start + "special_tokens: {pad_token: <p>, eos_token: </s>, additional_special_tokens: [<x>]}\n");
  EXPECT_EQ(same.sources.script.eos_token, "");
  const RunSpec other = apply(start + "special_tokens: {eos_token: <|im_end|>}\n");
  EXPECT_EQ(other.sources.script.eos_token, "<|im_end|>");
  EXPECT_EQ(other.reporting.logging_steps, 500) << "not TRL's default";
  EXPECT_EQ(
      apply("base_model: org/m\nlearning_rate: 1e-4\nspecial_tokens: {eos_token: <e>}\n" + std::string(kData))
          .sources.script.eos_token,
      "<e>");
  EXPECT_THAT(refusal(start + "special_tokens: {bos_token: <b>}\n"),
              HasSubstr("special_tokens: bos_token: \"<b>\" is not the tokenizer's"));
  EXPECT_THAT(refusal(start + "special_tokens: {additional_special_tokens: [<y>]}\n"),
              HasSubstr("additional_special_tokens"));
}

TEST(AxolotlFile, IsKnownByItsDataSetsOrItsNames) {
  const auto is_one = [](std::vector<ConfigSetting> settings) { return is_axolotl_file(settings); };
  EXPECT_TRUE(is_one({{"base_model", "m", 1}, {"sequence_len", "1", 2}}));
  EXPECT_TRUE(is_one({{"datasets", nlohmann::json::parse(R"([{"path": "a", "type": "alpaca"}])"), 1}}));
  EXPECT_FALSE(is_one({{"base_model", "m", 1}, {"max_length", "1", 2}}));
  EXPECT_FALSE(is_one({{"datasets", nlohmann::json::parse(R"(["a"])"), 1}}));
  EXPECT_FALSE(is_one({{"datasets", nlohmann::json::parse(R"([{"path": "a"}])"), 1}})) << "TRL's mixtures";
}

}  // namespace
}  // namespace tessera
