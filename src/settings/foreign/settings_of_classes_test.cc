// Walks the settings of Hugging Face's classes (tests/data/foreign-settings): each is honoured, has no effect
// for a reason that a warning gives, or is refused with a reason.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "formats/json.h"
#include "io/file.h"
#include "settings/config_file.h"
#include "settings/resolved_settings.h"
#include "support/settings/arguments_test_support.h"
#include "test_folder.h"
#include "test_paths.h"

namespace tessera {
namespace {

using testing::HasSubstr;

std::filesystem::path stored(const std::string& file) { return data_folder() / "foreign-settings" / file; }

// The result of reading a configuration file.
struct Outcome {
  RunSettings spec;
  FlagTable table;
  std::string warnings;
  std::string error;

  // The flags whose values are not the defaults.
  std::set<std::string> changed() const {
    RunSettings defaults;
    FlagTable default_table;
    declare_training_flags(&default_table, &defaults);
    std::set<std::string> names;
    for (const Flag& flag : table.flags()) {
      if (flag.get && flag.get() != default_table.find(flag.name)->get()) names.insert(flag.name);
    }
    return names;
  }
};

std::unique_ptr<Outcome> outcome_of(const std::string& text, ConfigSyntax syntax = ConfigSyntax::kJson) {
  auto outcome = std::make_unique<Outcome>();
  declare_training_flags(&outcome->table, &outcome->spec);
  testing::internal::CaptureStderr();
  try {
    apply_config_text(text, syntax, "run", &outcome->table);
    read_setting_files(&outcome->table, &outcome->spec);
  } catch (const Error& error) {
    outcome->error = error.what();
  }
  outcome->warnings = testing::internal::GetCapturedStderr();
  return outcome;
}

std::unique_ptr<Outcome> outcome_of(const std::string& name, const Json& value) {
  return outcome_of(Json{{name, value}}.dump());
}

// Settings by which nothing in the flags changes because they say what happens anyway, or repeat a default of
// ours that is not Hugging Face's.
const std::set<std::string> kSaysWhatHappens = {"do_train",
                                                "use_cpu",
                                                "dataloader_pin_memory",
                                                "bf16_full_eval",
                                                "dtype",
                                                "resume_from_checkpoint",
                                                "dataset_config",
                                                "dataset_train_split",
                                                "dataset_test_split",
                                                "model_revision",
                                                "output_dir"};

TEST(ForeignSettings, EveryDefaultIsTaken) {
  for (const char* file : {"transformers.json", "trl.json"}) {
    const Json settings = parse_json(read_text_file(stored(file)), file)["settings"];
    ASSERT_GT(settings.size(), 30u);
    for (const auto& [name, values] : settings.items()) {
      if (name == "packing_strategy") continue;
      const auto outcome = outcome_of(name, values["default"]);
      EXPECT_EQ(outcome->error, "") << name;
      EXPECT_THAT(outcome->warnings, testing::Not(HasSubstr("warning"))) << name;
    }
  }
}

TEST(ForeignSettings, EveryOtherValueIsHonouredWarnedOfOrRefused) {
  for (const char* file : {"transformers.json", "trl.json"}) {
    const Json settings = parse_json(read_text_file(stored(file)), file)["settings"];
    for (const auto& [name, values] : settings.items()) {
      const auto outcome = outcome_of(name, values["other"]);
      EXPECT_THAT(outcome->error, testing::Not(HasSubstr("unknown setting"))) << name;
      const bool is_refused = !outcome->error.empty();
      const bool is_warned_of = outcome->warnings.find("no effect: ") != std::string::npos;
      const bool is_honoured = !outcome->changed().empty() || kSaysWhatHappens.contains(name);
      EXPECT_TRUE(is_refused || is_warned_of || is_honoured) << name;
    }
  }
}

// A null that is not the default of the class means something, or is refused.
TEST(ForeignSettings, NoNullIsReadAsAnotherDefault) {
  for (const char* file : {"transformers.json", "trl.json"}) {
    const Json settings = parse_json(read_text_file(stored(file)), file)["settings"];
    for (const auto& [name, values] : settings.items()) {
      const auto outcome = outcome_of(name, nullptr);
      const Json& value = values["default"];
      const bool is_nothing = value.is_null() || value == false || value == "" || value == Json::array();
      if (is_nothing) {
        EXPECT_EQ(outcome->error, "") << name;
      }
      const Flag* flag = outcome->table.find(name);
      if (is_nothing || flag == nullptr || flag->status != FlagStatus::kHonoured) continue;
      const bool has_meaning = !outcome->changed().empty() || name == "report_to" || name == "eval_delay";
      EXPECT_TRUE(has_meaning || outcome->error.find("found null") != std::string::npos ||
                  (flag->default_text == "false" || flag->default_text.empty()))
          << name;
    }
  }
}

TEST(ForeignSettings, TheJsonOfTrainingArgumentsIsReadBack) {
  const auto outcome = outcome_of(read_text_file(stored("training_arguments.json")));
  EXPECT_EQ(outcome->error, "");
  EXPECT_THAT(outcome->warnings, testing::Not(HasSubstr("warning")));
  EXPECT_EQ(outcome->spec.schedule.learning_rate, 5e-5);
  EXPECT_EQ(outcome->spec.precision.bf16, false);
}

TEST(ForeignSettings, TheJsonOfSftConfigIsReadBack) {
  const auto outcome = outcome_of(read_text_file(stored("sft_config.json")));
  EXPECT_EQ(outcome->error, "");
  const std::string& warnings = outcome->warnings;
  EXPECT_EQ(warnings.find("warning"), warnings.rfind("warning")) << warnings;
  EXPECT_THAT(warnings, HasSubstr("eos_token <EOS_TOKEN>"));
  EXPECT_EQ(outcome->spec.schedule.learning_rate, 2e-5);
  EXPECT_EQ(outcome->spec.precision.bf16, true);
  EXPECT_TRUE(outcome->spec.placement.gradient_checkpointing);
}

TEST(ForeignSettings, NullMeansWhatItMeansThere) {
  EXPECT_EQ(outcome_of("max_grad_norm", nullptr)->spec.clipping.max_norm, 0);
  EXPECT_EQ(outcome_of("max_length", nullptr)->spec.data.max_length, kMaxRowLength);
  EXPECT_EQ(outcome_of("max_seq_length", nullptr)->spec.data.max_length, std::nullopt);
  EXPECT_EQ(outcome_of("data_seed", nullptr)->error, "");
  EXPECT_EQ(outcome_of("learning_rate", nullptr)->error,
            "run:1: learning_rate: expected a number, found null; leave the line out for the default, 5e-05 "
            "(2e-05 in TRL's files)");
}

TEST(ForeignSettings, AnEmptySettingOfAxolotlIsItsDefault) {
  const auto outcome = outcome_of(
      "base_model: m\nmicro_batch_size: 2\nmax_grad_norm:\nlearning_rate:\nlora_r:\n", ConfigSyntax::kYaml);
  EXPECT_EQ(outcome->error, "");
  EXPECT_EQ(outcome->spec.clipping.max_norm, 1);
}

TEST(ForeignSettings, TwoSpellingsMayAgree) {
  EXPECT_EQ(outcome_of(R"({"activation_checkpointing": true, "gradient_checkpointing": true})")
                ->spec.placement.gradient_checkpointing,
            true);
  EXPECT_EQ(outcome_of(R"({"activation_checkpointing": null, "gradient_checkpointing": true})")
                ->spec.placement.gradient_checkpointing,
            true);
  EXPECT_THAT(outcome_of(R"({"activation_checkpointing": false, "gradient_checkpointing": true})")->error,
              HasSubstr("'gradient_checkpointing' is already set in line 1"));
}

TEST(ForeignSettings, AcceleratorConfigIsJudgedByKey) {
  const auto of = [](const Json& value) { return outcome_of("accelerator_config", value)->error; };
  EXPECT_EQ(of({{"split_batches", false}, {"dispatch_batches", nullptr}, {"even_batches", true}}), "");
  EXPECT_THAT(
      of({{"split_batches", true}}),
      HasSubstr("--accelerator_config: split_batches true is not supported: per_device_train_batch_size"));
  EXPECT_THAT(of({{"even_batches", false}}), HasSubstr("even_batches false is not supported"));
  EXPECT_THAT(of({{"spilt_batches", true}}), HasSubstr("unknown key 'spilt_batches'"));
  EXPECT_THAT(outcome_of("accelerator_config", {{"non_blocking", true}})->warnings,
              HasSubstr("accelerator_config: non_blocking true has no effect: "));
}

TEST(ForeignSettings, UsePeftHasTheDefaultsOfTrl) {
  const auto outcome = outcome_of("use_peft: true\nlora_r: 32\npeft_type: LORA\n", ConfigSyntax::kYaml);
  EXPECT_EQ(outcome->error, "");
  EXPECT_EQ(outcome->spec.lora.finetuning_type, FinetuningType::kLora);
  EXPECT_EQ(outcome->spec.lora.rank, 32);
  EXPECT_EQ(outcome->spec.lora.alpha, 32);
  EXPECT_EQ(outcome->spec.lora.dropout, 0.05);
  EXPECT_EQ(outcome->spec.lora.targets, (std::vector<std::string>{"q_proj", "v_proj"}));
  EXPECT_EQ(outcome->spec.schedule.learning_rate, 2e-5);
  EXPECT_EQ(outcome->spec.reporting.logging_steps, 10);
  EXPECT_THAT(outcome_of(R"({"use_peft": true, "finetuning_type": "full"})")->error,
              HasSubstr("use_peft contradicts finetuning_type full"));
}

TEST(ForeignSettings, WithoutPeftTheSettingsOfLoraHaveNoEffect) {
  const auto file = outcome_of(
      "use_peft: false\nlora_r: 32\nlora_target_modules: [q_proj]\nlora_modules_to_save: [lm_head]\n",
      ConfigSyntax::kYaml);
  EXPECT_EQ(file->error, "");
  EXPECT_EQ(file->spec.lora.finetuning_type, FinetuningType::kFull);
  EXPECT_THAT(file->warnings, HasSubstr("lora_r, lora_target_modules, lora_modules_to_save have no effect: "
                                        "use_peft is false"));
  EXPECT_FALSE(file->table.is_set("lora_rank"));
}

TEST(ForeignSettings, EnvSetsTheVariablesThatAreRead) {
  const auto file = outcome_of("env:\n  HF_TEST_VARIABLE: a b\n  MLFLOW_TEST_NUMBER: 7\n  WANDB_PROJECT: p\n",
                               ConfigSyntax::kYaml);
  EXPECT_EQ(file->error, "");
  EXPECT_STREQ(std::getenv("HF_TEST_VARIABLE"), "a b");
  EXPECT_STREQ(std::getenv("MLFLOW_TEST_NUMBER"), "7");
  EXPECT_EQ(std::getenv("WANDB_PROJECT"), nullptr);
  EXPECT_THAT(file->warnings, HasSubstr("env WANDB_PROJECT has no effect: nothing here reads the variable"));
  EXPECT_THAT(outcome_of("env: [A]\n", ConfigSyntax::kYaml)->error, HasSubstr("expected an object"));
  EXPECT_THAT(outcome_of("env: {TESSERA_ISA: ref}\n", ConfigSyntax::kYaml)->error,
              HasSubstr("env: TESSERA_ISA: set it in the environment"));
}

TEST(ForeignSettings, KeysOfKwargsBecomeSettings) {
  const auto model = outcome_of(
      "model_init_kwargs: {torch_dtype: torch.float32, attn_implementation: sdpa, revision: v2}\n"
      "model: org/model\n",
      ConfigSyntax::kYaml);
  EXPECT_EQ(model->error, "");
  EXPECT_EQ(model->spec.precision.dtype, DType::kF32);
  EXPECT_EQ(model->spec.model.folder, "org/model@v2");
  EXPECT_THAT(model->warnings, HasSubstr("model_init_kwargs: attn_implementation sdpa has no effect"));
  EXPECT_THAT(
      outcome_of("model_init_kwargs: {dtype: float32}\ndtype: bfloat16\n", ConfigSyntax::kYaml)->error,
      HasSubstr("contradict each other"));
  EXPECT_EQ(outcome_of("model_init_kwargs: {dtype: auto}\n", ConfigSyntax::kYaml)->error, "");
  EXPECT_THAT(outcome_of("model_init_kwargs: {rope_theta: 1}\n", ConfigSyntax::kYaml)->error,
              HasSubstr("unknown key 'rope_theta'"));

  const auto rows = outcome_of(
      "dataset_kwargs: {skip_prepare_dataset: true, add_special_tokens: false}\n"
      "max_length: 512\n",
      ConfigSyntax::kYaml);
  EXPECT_EQ(rows->error, "");
  EXPECT_EQ(rows->spec.data.shape, RowShape::kTokens);
  EXPECT_EQ(rows->spec.data.max_length, kMaxRowLength);
  EXPECT_TRUE(rows->spec.data.add_special_tokens);
  EXPECT_THAT(rows->warnings, HasSubstr("max_length has no effect: skip_prepare_dataset"));
  EXPECT_THAT(rows->warnings, HasSubstr("add_special_tokens false has no effect: TRL no longer reads it"));
  EXPECT_THAT(
      outcome_of("dataset_kwargs: {skip_prepare_dataset: true}\npacking: true\n", ConfigSyntax::kYaml)->error,
      HasSubstr("packing contradicts skip_prepare_dataset"));
}

TEST(ForeignSettings, MaskedTokensAreNoTokens) {
  const auto masked = outcome_of("eos_token", "<EOS_TOKEN>");
  EXPECT_EQ(masked->spec.sources.script.eos_token, "");
  EXPECT_THAT(masked->warnings, HasSubstr("eos_token <EOS_TOKEN> is what the JSON of SFTConfig has"));
  for (const char* name : {"pad_token", "hub_token", "push_to_hub_token"}) {
    std::string mask = name;
    for (char& c : mask) c = static_cast<char>(std::toupper(c));
    const auto outcome = outcome_of(name, "<" + mask + ">");
    EXPECT_EQ(outcome->error, "") << name;
  }
}

TEST(ForeignSettings, TextFilesOfTrlHaveARowPerLine) {
  const TestFolder folder;
  folder.write("train.txt", "one\ntwo\n");
  const auto name = outcome_of("dataset_name", folder.path().string());
  EXPECT_EQ(name->error, "");
  EXPECT_TRUE(name->spec.data.text_per_line);
  const auto mixture = outcome_of("datasets:\n  - path: text\n    data_files: x.txt\n", ConfigSyntax::kYaml);
  EXPECT_TRUE(
      dataset_options(mixture->spec.data, mixture->spec.data.dataset, "m").sources[0].format.has_lines);
  EXPECT_THAT(outcome_of("datasets:\n  - path: json\n    data_files: x.txt\n", ConfigSyntax::kYaml)->error,
              HasSubstr("x.txt: a file is read as its name says, which is not json"));
}

TEST(ForeignSettings, DatasetNameIsAFolderWithSplitsOrAHubName) {
  const TestFolder folder;
  for (const char* file : {"train.jsonl", "test.jsonl"}) folder.write(file, "{\"text\": \"a\"}\n");
  const std::string name = folder.path().string();
  const auto local =
      outcome_of(Json{{"dataset_name", name}, {"eval_strategy", "epoch"}, {"learning_rate", 0.5}}.dump());
  EXPECT_EQ(local->error, "");
  EXPECT_EQ(local->spec.data.dataset, std::vector<std::string>{name + "/train.jsonl"});
  EXPECT_EQ(local->spec.data.eval_dataset, std::vector<std::string>{name + "/test.jsonl"});
  EXPECT_EQ(local->spec.schedule.learning_rate, 0.5);
  EXPECT_THAT(outcome_of(Json{{"dataset_name", name}, {"dataset_train_split", "tarin"}}.dump())->error,
              HasSubstr("has no split 'tarin'"));

  const auto hub = outcome_of(
      R"({"dataset_name": "a/b", "dataset_config": "en", "dataset_test_split": "dev", "eval_strategy": "epoch",
          "model": "org/model", "model_revision": "v2"})");
  EXPECT_EQ(hub->spec.data.dataset, std::vector<std::string>{"a/b:en/train"});
  EXPECT_EQ(hub->spec.data.eval_dataset, std::vector<std::string>{"a/b:en/dev"});
  EXPECT_EQ(hub->spec.model.folder, "org/model@v2");

  const auto example =
      outcome_of(R"({"dataset_name": "a/b", "dataset_config_name": "en", "eval_strategy": "epoch"})");
  EXPECT_EQ(example->spec.data.eval_dataset, std::vector<std::string>{"a/b:en/validation"});
  EXPECT_EQ(example->spec.schedule.learning_rate, 5e-5);
  EXPECT_THAT(outcome_of(R"({"dataset_name": "a/b", "dataset": "c.jsonl"})")->error,
              HasSubstr("dataset_name contradicts dataset"));
  EXPECT_THAT(outcome_of(R"({"dataset_name": "wikitext"})")->error, HasSubstr("org/name, found 'wikitext'"));
}

TEST(ForeignSettings, TheMixtureOfTrlIsTranslated) {
  const auto of = [](const std::string& entry) {
    return outcome_of("datasets:\n  - path: a/b\n    name: en\n  - " + entry, ConfigSyntax::kYaml);
  };
  EXPECT_EQ(of("path: c/d\n    split: dev\n")->spec.data.dataset,
            (std::vector<std::string>{"a/b:en/train", "c/d/dev"}));
  EXPECT_EQ(of("path: json\n    data_files: [x.jsonl, y.jsonl]\n")->spec.data.dataset,
            (std::vector<std::string>{"a/b:en/train", "x.jsonl", "y.jsonl"}));
  EXPECT_THAT(of("path: c/d\n    fraction: 0.5\n")->error,
              HasSubstr("run:1: datasets: fraction is not supported"));
  EXPECT_THAT(of("path: c/d\n    colums: [a]\n")->error, HasSubstr("unknown key 'colums'"));
  EXPECT_THAT(of("path: c/d\n    split: 'train[:10%]'\n")->error,
              HasSubstr("split train[:10%] is not supported"));
}

}  // namespace
}  // namespace tessera
