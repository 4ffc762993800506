#include "settings/resolved_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "comm/ranks/launch_variables.h"
#include "io/file.h"
#include "settings/config_file.h"
#include "settings/spec_variants.h"
#include "support/settings/arguments_test_support.h"
#include "test_folder.h"

namespace tessera {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

class ResolvedSettingsTest : public ArgumentsTest {
 protected:
  void resolve_on(int64_t world_size) {
    settings_ = settings_with_origins(table_, spec_, read_run_spec(table_, spec_, world_size));
  }

  const ResolvedSetting& setting(const std::string& name) const {
    for (const ResolvedSetting& each : settings_) {
      if (each.name == name) return each;
    }
    throw std::out_of_range(name);
  }

  // "value | origin | source".
  std::string line(const std::string& name) const {
    const ResolvedSetting& each = setting(name);
    return fmt::format("{} | {} | {}", each.value.dump(), origin_name(each.origin), each.source);
  }

  std::vector<ResolvedSetting> settings_;
};

TEST_F(ResolvedSettingsTest, NameFlagFileLineEnvironmentAndDefault) {
  give("learning_rate", "0.001");
  apply_config_text("max_steps: 7\n\nlearning_rate: 1\nsave_steps: 500\n", ConfigSyntax::kYaml, "run.yaml",
                    &table_);
  read_environment(
      [](const std::string& name) -> std::optional<std::string> {
        return name == kResumeVariable ? std::optional<std::string>("auto") : std::nullopt;
      },
      &table_, &spec_);
  resolve_on(1);
  EXPECT_EQ(line("learning_rate"), "0.001 | flag | ");
  EXPECT_EQ(line("max_steps"), "7 | file | run.yaml:1");
  EXPECT_EQ(line("save_steps"), "500.0 | file | run.yaml:4");  // given, though it is the default
  EXPECT_EQ(line("resume_from_checkpoint"), R"("auto" | environment | TESSERA_RESUME)");
  EXPECT_EQ(line("weight_decay"), "0.0 | default | ");
  EXPECT_EQ(setting("learning_rate").default_value, 5e-5);
}

TEST_F(ResolvedSettingsTest, NameTheKeyOfTheDeepSpeedFile) {
  const TestFolder folder;
  const std::string file = folder / "ds.json";
  write_text_file(file, R"({"train_micro_batch_size_per_gpu": 3, "gradient_accumulation_steps": "auto",
    "zero_optimization": {"stage": 3, "zero_quantized_gradients": true}, "bf16": {"enabled": true},
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "weight_decay": "auto"}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}}})");
  give("deepspeed", file);
  give("weight_decay", "0.5");
  resolve_on(4);
  const std::string at = " | deepspeed | " + file + ": ";
  EXPECT_EQ(line("per_device_train_batch_size"), "3" + at + "train_micro_batch_size_per_gpu");
  EXPECT_EQ(line("zero_stage"), "3" + at + "zero_optimization.stage");
  EXPECT_EQ(line("zero_quantized_gradients"),
            R"("int4")" + at + "zero_optimization.zero_quantized_gradients");
  EXPECT_EQ(line("dtype"), R"("bfloat16")" + at + "bf16.enabled");
  EXPECT_EQ(line("learning_rate"), "0.01" + at + "optimizer.params.lr");
  EXPECT_EQ(line("warmup_steps"), "5.0" + at + "scheduler.params.warmup_num_steps");
  EXPECT_THAT(line("adam_beta2"), EndsWith("no optimizer.params.betas, DeepSpeed 0.19's default"));
  EXPECT_EQ(line("weight_decay"), "0.5 | flag | ");  // auto in the file
  EXPECT_EQ(line("gradient_accumulation_steps"), "1 | default | ");
}

TEST_F(ResolvedSettingsTest, TheBatchOfADeepSpeedFileGivesItsParts) {
  const TestFolder folder;
  const std::string file = folder / "ds.json";
  write_text_file(file, R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 2})");
  give("deepspeed", file);
  resolve_on(4);
  EXPECT_EQ(line("gradient_accumulation_steps"), "3 | deepspeed | " + file + ": train_batch_size");
}

TEST_F(ResolvedSettingsTest, SayWhatASettingWasDerivedFrom) {
  give("global_batch_size", "64");
  give("train_sampling_strategy", "sequential");
  give("bf16", "false");
  resolve_on(4);
  EXPECT_EQ(line("gradient_accumulation_steps"), "2 | derived | from global_batch_size");
  EXPECT_EQ(line("zero_stage"), "2 | derived | from the number of ranks");
  EXPECT_EQ(line("shuffle"), "false | derived | from train_sampling_strategy");
  EXPECT_EQ(line("dtype"), R"("float32" | derived | from bf16)");
}

// A command reads the same settings for several numbers of ranks (tessera simulate).
TEST_F(ResolvedSettingsTest, ReadingLeavesWhatWasGivenAsItIs) {
  const TestFolder folder;
  const std::string file = folder / "ds.json";
  write_text_file(file, R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 2,
    "zero_optimization": {"stage": 3}, "bf16": {"enabled": false}})");
  give("deepspeed", file);
  for (const int64_t world_size : {4, 6, 4}) {
    const RunSpec spec = read_run_spec(table_, spec_, world_size);
    EXPECT_EQ(spec.sharding.stage, 3);
    EXPECT_EQ(spec.precision.dtype, DType::kF32);
    EXPECT_EQ(spec.batch.accumulation_steps, 24 / 2 / world_size);
    EXPECT_EQ(spec.sources.given.count("zero_stage"), 1u);
  }
  EXPECT_EQ(training_arguments(spec_).at("zero_stage"), nullptr);
  EXPECT_EQ(spec_.precision.dtype, RunSpec().precision.dtype);
}

TEST_F(ResolvedSettingsTest, AResumedRunKeepsWhatChangesItsNumbersUnlessGivenAnew) {
  RunSettings first;
  first.optimizer.form = OptimizerForm::kAdamW8Bit;
  first.clipping.mode = ClipMode::kLayer;
  first.base.load_in_4bit = true;
  first.placement.gradient_checkpointing = true;
  const nlohmann::json then = training_arguments(first);
  give("clip_mode", "previous");
  give("optimizer_in_backward", "true");
  spec_ = read_run_spec(table_, spec_, 1);
  RunSettings spec = continued(spec_, then, "runs/a");
  EXPECT_EQ(spec.optimizer.form, OptimizerForm::kAdamW8Bit);
  EXPECT_EQ(spec.sources.given.at("optim").where, "runs/a");
  EXPECT_EQ(spec.clipping.mode, ClipMode::kPrevious);
  EXPECT_EQ(spec.base.bits_wanted(), 4);
  EXPECT_FALSE(spec.placement.gradient_checkpointing) << "the same numbers, in another place";
  spec_.sources.given["quantization_bit"] = {};
  spec = continued(spec_, then, "runs/a");
  EXPECT_EQ(spec.base.bits_wanted(), 0) << "all names of one setting stay with the one given";
}

// Every setting a run derives without being told has a reason in the table.
TEST_F(ResolvedSettingsTest, EveryDerivedSettingHasASource) {
  give("eval_dataset", "e.txt");
  give("eval_strategy", "steps");
  give("load_best_model_at_end", "true");
  give("neat_packing", "true");
  give("disable_gradient_checkpointing", "false");
  resolve_on(2);
  int num_derived = 0;
  for (const ResolvedSetting& each : settings_) {
    if (each.origin != SettingOrigin::kDerived) continue;
    ++num_derived;
    EXPECT_THAT(each.source, HasSubstr("from ")) << each.name;
  }
  EXPECT_GE(num_derived, 7);
}

}  // namespace
}  // namespace tessera
