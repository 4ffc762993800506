#include "settings/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/error.h"
#include "settings/compat/compat_flags.h"
#include "settings/run_settings.h"

namespace tessera {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::IsEmpty;

class ConfigFileTest : public testing::Test {
 protected:
  ConfigFileTest() { declare_training_flags(&table_, &spec_); }

  void apply(ConfigSyntax syntax, const std::string& text) {
    apply_config_text(text, syntax, "run.cfg", &table_);
  }

  std::string refusal(ConfigSyntax syntax, const std::string& text) {
    try {
      apply(syntax, text);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadConfig) << error.what();
      EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << error.what();
      return error.what();
    }
    ADD_FAILURE() << "was accepted: " << text;
    return "";
  }

  RunSettings spec_;
  FlagTable table_;
};

TEST_F(ConfigFileTest, ReportToIsATextOrAListAndDropsForeignServices) {
  using Names = std::vector<std::string>;
  // Returns report_to and what was warned of.
  const auto reports = [](ConfigSyntax syntax, std::string_view text, const Names& flag = {}) {
    RunSettings spec;
    FlagTable table;
    declare_training_flags(&table, &spec);
    if (!flag.empty()) table.set(*table.find("report_to"), flag, "command line");
    testing::internal::CaptureStderr();
    apply_config_text(text, syntax, "run", &table);
    return std::pair(table.find("report_to")->get(), testing::internal::GetCapturedStderr());
  };
  using testing::Pair;
  EXPECT_THAT(reports(ConfigSyntax::kYaml, "report_to: tensorboard"), Pair(Names{"tensorboard"}, ""));
  EXPECT_THAT(reports(ConfigSyntax::kYaml, "report_to: [csv, tensorboard]"),
              Pair(Names{"tensorboard", "csv"}, ""));
  EXPECT_THAT(reports(ConfigSyntax::kJson, R"({"report_to": []})"), Pair(Names{"none"}, ""));
  EXPECT_THAT(reports(ConfigSyntax::kJson, R"({"report_to": null})"), Pair(Names{"jsonl"}, ""));
  EXPECT_THAT(reports(ConfigSyntax::kJson, R"({"report_to": ["wandb", "mlflow"]})"),
              Pair(Names{"mlflow"}, HasSubstr("run:1: report_to wandb has no effect: it is not supported")));
  EXPECT_THAT(reports(ConfigSyntax::kYaml, "seed: 1\nreport_to: comet_ml"),
              Pair(Names{"jsonl"}, HasSubstr("run:2: report_to comet_ml has no effect")));
  EXPECT_THAT(reports(ConfigSyntax::kYaml, "report_to: wandb", {"csv"}), Pair(Names{"csv"}, ""));
}

TEST_F(ConfigFileTest, AnUnknownReportIsRefused) {
  EXPECT_THAT(refusal(ConfigSyntax::kYaml, "report_to: [wandb, tensorbord]"),
              HasSubstr("run.cfg:1: --report_to: expected none, all or some of"));
}

TEST_F(ConfigFileTest, JsonSettingsOfEveryType) {
  apply(ConfigSyntax::kJson, R"({
    "model_name_or_path": "m", "dataset": ["a.txt", "b.txt"], "learning_rate": 2e-4, "max_steps": 30,
    "warmup_steps": 0.1, "packing": true, "data_seed": null, "bf16": true,
    "lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1},
    "report_to": ["none"], "deepspeed": null, "hub_token": null})");
  EXPECT_EQ(spec_.model.folder, "m");
  EXPECT_EQ(spec_.data.dataset, (std::vector<std::string>{"a.txt", "b.txt"}));
  EXPECT_EQ(spec_.schedule.learning_rate, 2e-4);
  EXPECT_EQ(spec_.batch.max_steps, 30);
  EXPECT_EQ(spec_.schedule.warmup_steps, 0.1);
  EXPECT_TRUE(spec_.data.packing);
  EXPECT_EQ(spec_.data.seed, std::nullopt);
  EXPECT_EQ(spec_.precision.bf16, true);
  EXPECT_EQ(spec_.sources.json_texts.at("lr_scheduler_kwargs"), R"({"min_lr_rate":0.1})");
  spec_ = read_run_spec(table_, spec_, 1);
}

TEST_F(ConfigFileTest, YamlSettingsOfEveryType) {
  apply(ConfigSyntax::kYaml, R"(# a run
model: m
dataset:
  - a.txt
  - 'b c.txt'
learning_rate: 2e-4
output_dir: 007
packing: yes
data_seed: ~
eval-steps: 0.5
lr_scheduler_type: cosine_with_min_lr
lr_scheduler_kwargs:
  min_lr_rate: 0.1
  num_cycles: 1
)");
  EXPECT_EQ(spec_.data.dataset, (std::vector<std::string>{"a.txt", "b c.txt"}));
  EXPECT_EQ(spec_.schedule.learning_rate, 2e-4);
  EXPECT_EQ(spec_.output_dir, "007");
  EXPECT_TRUE(spec_.data.packing);
  EXPECT_EQ(spec_.evaluation.steps, 0.5);
  EXPECT_EQ(spec_.sources.json_texts.at("lr_scheduler_kwargs"), R"({"min_lr_rate":0.1,"num_cycles":1})");
  spec_ = read_run_spec(table_, spec_, 1);
}

TEST_F(ConfigFileTest, OneFileMayStandWithoutAList) {
  apply(ConfigSyntax::kYaml, "dataset: a.txt\n");
  EXPECT_EQ(spec_.data.dataset, std::vector<std::string>{"a.txt"});
}

TEST_F(ConfigFileTest, EmptyFilesSetNothing) {
  apply(ConfigSyntax::kYaml, "# nothing\n");
  apply(ConfigSyntax::kYaml, "---\n# nothing\n---\n");
  apply(ConfigSyntax::kJson, "{}");
  EXPECT_FALSE(table_.is_set("model"));
}

TEST_F(ConfigFileTest, TheCommandLineWins) {
  table_.set(*table_.find("learning_rate"), {"1"}, "command line");
  apply(ConfigSyntax::kYaml, "learning_rate: 2\nmax_steps: 3\n");
  EXPECT_EQ(spec_.schedule.learning_rate, 1);
  EXPECT_EQ(spec_.batch.max_steps, 3);
}

TEST_F(ConfigFileTest, ATypoIsNamedWithItsLineAndTheNearestName) {
  EXPECT_EQ(refusal(ConfigSyntax::kYaml, "model: m\n\nlearning_rat: 1\n"),
            "run.cfg:3: unknown setting 'learning_rat'; did you mean 'learning_rate'?");
  EXPECT_EQ(refusal(ConfigSyntax::kJson, "{\n\"model\": \"m\",\n \"learning_rat\": 1}"),
            "run.cfg:3: unknown setting 'learning_rat'; did you mean 'learning_rate'?");
  EXPECT_THAT(refusal(ConfigSyntax::kYaml, "zzzzqqqq: 1\n"), HasSubstr("'tessera train --help' lists them"));
}

TEST_F(ConfigFileTest, NamesOfOtherProgramsAreNoFlagsAndLeadToSome) {
  for (const ForeignNames& entry : compat_hints()) {
    if (entry.here != nullptr) {
      const Flag* flag = table_.find(entry.here);
      ASSERT_NE(flag, nullptr) << entry.here;
      EXPECT_EQ(flag->status, FlagStatus::kHonoured) << entry.here;
    }
    std::istringstream names(entry.names);
    for (std::string name; names >> name;) {
      EXPECT_EQ(table_.find(name), nullptr) << name << " is a flag";
      if (!name.ends_with('*')) continue;
      for (const Flag& flag : table_.flags()) {
        if (flag.status != FlagStatus::kHonoured) continue;
        EXPECT_FALSE(flag.name.starts_with(name.substr(0, name.size() - 1)))
            << name << " hides " << flag.name;
      }
    }
  }
}

// Settings of their example files for full fine-tuning, except the data.
TEST_F(ConfigFileTest, AFileOfLlamaFactoryIsTaken) {
  constexpr std::string_view kLlamaFactory = R"(
model_name_or_path: meta/model
trust_remote_code: true
stage: sft
do_train: true
finetuning_type: full
cutoff_len: 2048
overwrite_cache: true
preprocessing_num_workers: 16
dataloader_num_workers: 4
output_dir: saves/full
logging_steps: 10
save_steps: 500
plot_loss: true
overwrite_output_dir: true
save_only_model: false
report_to: none  # choices: [none, wandb, tensorboard]
per_device_train_batch_size: 1
gradient_accumulation_steps: 2
learning_rate: 1.0e-5
num_train_epochs: 3.0
lr_scheduler_type: cosine
warmup_ratio: 0.1
bf16: true
ddp_timeout: 180000000
resume_from_checkpoint: null
packing: true
neat_packing: true
)";
  apply_config_text(kLlamaFactory, ConfigSyntax::kYaml, "llama_factory.yaml", &table_);
  EXPECT_EQ(spec_.model.folder, "meta/model");
  EXPECT_EQ(spec_.data.max_length, 2048);
  EXPECT_TRUE(spec_.data.packing);
}

TEST_F(ConfigFileTest, AFileOfAxolotlIsTaken) {
  constexpr std::string_view kAxolotl = R"(
base_model: meta/model
model_type: LlamaForCausalLM
tokenizer_type: AutoTokenizer
load_in_8bit: false
load_in_4bit: false
strict: false
dataset_prepared_path: last_run_prepared
output_dir: ./out
sequence_len: 8192
sample_packing: true
eval_sample_packing: false
pad_to_sequence_len: true
adapter:
wandb_project:
wandb_entity:
wandb_watch:
wandb_name:
wandb_log_model:
gradient_accumulation_steps: 8
micro_batch_size: 1
eval_batch_size: 2
num_epochs: 1
optimizer: adamw_torch
lr_scheduler: cosine
learning_rate: 2e-5
bf16: auto
tf32: false
gradient_checkpointing: true
gradient_checkpointing_kwargs:
  use_reentrant: false
resume_from_checkpoint:
logging_steps: 1
flash_attention: true
rl:
early_stopping_patience:
warmup_ratio: 0.1
weight_decay: 0.0
fsdp:
fsdp_config:
)";
  RunSettings spec;
  FlagTable table;
  declare_training_flags(&table, &spec);
  apply_config_text(kAxolotl, ConfigSyntax::kYaml, "axolotl.yaml", &table);
  EXPECT_EQ(spec.model.folder, "meta/model");
  EXPECT_EQ(spec.data.max_length, 8192);
  EXPECT_TRUE(spec.data.packing);
  EXPECT_EQ(spec.batch.num_epochs, 1);
  EXPECT_EQ(spec.batch.rows_per_device, 1);
  EXPECT_EQ(spec.evaluation.rows_per_device, 2);
  EXPECT_EQ(spec.data.cache_dir, "last_run_prepared");
  EXPECT_FALSE(spec.precision.bf16.has_value());
  EXPECT_THAT(refusal(ConfigSyntax::kYaml, "evals_per_epoch: 4\n"), HasSubstr("eval_strategy epoch"));
  EXPECT_THAT(refusal(ConfigSyntax::kYaml, "special_tokens:\n  pad_token: x\n"), HasSubstr("special tokens"));
}

TEST_F(ConfigFileTest, AllMistakesAreNamedWithTheirLines) {
  EXPECT_EQ(
      refusal(ConfigSyntax::kYaml,
              "learning_rat: 1\nmodel: m\nepochs: 3\nmax_steps: ten\nqlora_rank: 8\nmodel: n\n"),
      "5 mistakes: (1) run.cfg:1: unknown setting 'learning_rat'; did you mean 'learning_rate'? (2) "
      "run.cfg:3: unknown setting 'epochs'; did you mean 'num_train_epochs'? (3) run.cfg:4: --max_steps: "
      "expected a whole number, found 'ten' (4) run.cfg:5: unknown setting 'qlora_rank': of "
      "adapters there is LoRA as Hu et al. describe it, on weights in bfloat16, float32, int8 or nf4: see "
      "finetuning_type, lora_* and quantization_bit (5) run.cfg:6: 'model' is already set in line 2");
}

TEST_F(ConfigFileTest, ValuesAreCheckedAsOnTheCommandLineButAreConfigurationErrors) {
  EXPECT_EQ(refusal(ConfigSyntax::kYaml, "a: 1\n").substr(0, 10), "run.cfg:1:");
  EXPECT_EQ(refusal(ConfigSyntax::kJson, "{\n\n\"learning_rate\": -1}"),
            "run.cfg:3: --learning_rate: expected a finite number of at least 0, found -1");
  EXPECT_THAT(refusal(ConfigSyntax::kYaml, "learning_rate: .nan\n"),
              HasSubstr("expected a number, found '.nan'"));
  EXPECT_THAT(refusal(ConfigSyntax::kJson, R"({"max_steps": "many"})"), HasSubstr("expected a whole number"));
  EXPECT_THAT(refusal(ConfigSyntax::kJson, R"({"max_steps": [1]})"),
              HasSubstr("max_steps: expected a whole number, found a list of 1, [1]"));
  EXPECT_THAT(refusal(ConfigSyntax::kJson, R"({"dataset": [["a"]]})"),
              HasSubstr("dataset: expected a list of texts, found a list of 1, [\"a\"] in it"));
  EXPECT_EQ(refusal(ConfigSyntax::kJson, R"({"output_dir": "a\u0000b"})"),
            R"(run.cfg:1: --output_dir 'a\x00b' has a zero byte)");
  EXPECT_THAT(refusal(ConfigSyntax::kYaml, "fp16: true\n"), HasSubstr("--fp16 true is not supported"));
}

TEST_F(ConfigFileTest, SyntaxErrorsNameTheLine) {
  EXPECT_EQ(refusal(ConfigSyntax::kJson, "{\n\"model\": }"),
            "run.cfg:2: not JSON: column 10: found '}': unexpected '}'; expected '[', '{', or a literal");
  EXPECT_EQ(
      refusal(ConfigSyntax::kYaml, "model: m\n  - x: [\n"),
      "run.cfg:2: not YAML: column 6: expected 'name: value' lines with one indentation, and quotes "
      "around a value that has ': ' or ' #' in it or begins with a special character; found '  - x: ['");
  EXPECT_EQ(
      refusal(ConfigSyntax::kYaml, "model: m\ndataset: *.txt\n"),
      "run.cfg:2: not YAML: column 10: a value that begins with * or & needs quotes; found 'dataset: *.txt'");
  EXPECT_THAT(refusal(ConfigSyntax::kYaml, "dataset: [a, b\nseed: 1\n"),
              HasSubstr("a [ or { and its end do not match"));
  EXPECT_THAT(refusal(ConfigSyntax::kYaml, "model: \"a\\q\"\n"), HasSubstr("a backslash is written \\\\;"));
  EXPECT_THAT(refusal(ConfigSyntax::kYaml, "# settings\n, \"seed\": 1\n"),
              AllOf(HasSubstr("run.cfg:2: not YAML: column 1: expected 'name: value' lines"),
                    HasSubstr("found ', \"seed\": 1'")));
  EXPECT_THAT(refusal(ConfigSyntax::kJson, "[1]"),
              HasSubstr("expected a JSON object of settings, found a list of 1"));
  EXPECT_THAT(refusal(ConfigSyntax::kYaml, "- 1\n"), HasSubstr("expected settings"));
  EXPECT_THAT(refusal(ConfigSyntax::kJson, ""), HasSubstr("not JSON"));
  EXPECT_EQ(refusal(ConfigSyntax::kYaml, "model: m\nlr_scheduler_kwargs: {a: \"\xff\"}\n"),
            "run.cfg:2: not valid UTF-8");
}

// Input that yaml-cpp would turn into bytes that are not UTF-8.
TEST_F(ConfigFileTest, ControlCharactersAndListsAsNamesAreRefused) {
  using namespace std::string_literals;
  EXPECT_EQ(refusal(ConfigSyntax::kYaml, "model: m\nlr_scheduler_kwargs: {num\0_cycles: 0}\n"s),
            "run.cfg:2: found the control character \\x00");
  EXPECT_EQ(refusal(ConfigSyntax::kJson, "{\n\"model\": \"\x1b\"}"),
            "run.cfg:2: found the control character \\x1b");
  EXPECT_EQ(refusal(ConfigSyntax::kYaml, "lr_scheduler_kwargs: {[a]: 1}\n"),
            "run.cfg:1: expected a text, found a list");
}

TEST_F(ConfigFileTest, ASettingGivenTwiceIsRefusedUnderAnyOfItsNames) {
  EXPECT_THAT(refusal(ConfigSyntax::kYaml, "max_length: 8\nblock_size: 9\n"),
              HasSubstr("run.cfg:2: 'block_size' is already set in line 1"));
  EXPECT_THAT(refusal(ConfigSyntax::kJson, "{\"seed\": 1,\n\"seed\": 2}"),
              HasSubstr("run.cfg:2: 'seed' is already"));
  EXPECT_THAT(refusal(ConfigSyntax::kYaml, "seed: 1\nseed: 1\n"), HasSubstr("already set"));
  EXPECT_EQ(refusal(ConfigSyntax::kYaml, "model: m\n---\nseed: 1\n"),
            "run.cfg:3: a second YAML document after '---', expected all settings in the first");
}

TEST_F(ConfigFileTest, DeepNestingIsRefused) {
  std::string json =
      R"({"lr_scheduler_kwargs": )" + std::string(100000, '[') + std::string(100000, ']') + "}";
  EXPECT_THAT(refusal(ConfigSyntax::kJson, json), HasSubstr("levels deep"));
  const std::string yaml = "lr_scheduler_kwargs: " + std::string(40, '[') + std::string(40, ']') + "\n";
  EXPECT_THAT(refusal(ConfigSyntax::kYaml, yaml), HasSubstr("levels deep"));
  const std::string deeper =
      "lr_scheduler_kwargs: " + std::string(100000, '[') + std::string(100000, ']') + "\n";
  EXPECT_THAT(refusal(ConfigSyntax::kYaml, deeper), HasSubstr("run.cfg:1:"));
}

TEST_F(ConfigFileTest, AConfigurationFileNamesNoOther) {
  EXPECT_THAT(refusal(ConfigSyntax::kYaml, "config: other.yaml\n"), HasSubstr("cannot name another"));
}

TEST_F(ConfigFileTest, TheRecordOfARunSetsWhatTheRunSet) {
  spec_.schedule.learning_rate = 1e-3;
  spec_.sources.config = "run.yaml";
  const std::string record = training_arguments_json(spec_);
  RunSettings spec;
  FlagTable table;
  declare_training_flags(&table, &spec);
  apply_config_text(record, ConfigSyntax::kJson, "out/training_args.json", &table);
  EXPECT_EQ(spec.schedule.learning_rate, 1e-3);
  EXPECT_TRUE(table.is_set("learning_rate"));
  EXPECT_FALSE(table.is_set("lora_rank"));  // it would need finetuning_type lora
  EXPECT_THAT(spec.sources.config, IsEmpty());
}

TEST_F(ConfigFileTest, TheNameDecidesTheSyntax) {
  const std::filesystem::path folder = testing::TempDir();
  std::ofstream(folder / "run.json") << R"({"max_steps": 4})";
  std::ofstream(folder / "run.yaml") << "seed: 5\n";
  apply_config_file(folder / "run.json", &table_);
  apply_config_file(folder / "run.yaml", &table_);
  EXPECT_EQ(spec_.batch.max_steps, 4);
  EXPECT_EQ(spec_.seed, 5);
  try {
    apply_config_file(folder / "missing.yaml", &table_);
    FAIL() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kNoInput);
    EXPECT_THAT(error.what(), HasSubstr("missing.yaml"));
  }
}

// Nine lists of nine lists of nine...: a kilobyte that stands for a billion texts.
TEST_F(ConfigFileTest, AliasesThatMultiplyAreRefused) {
  std::string lists = "a0: &a0 [x]\n", maps = "a0: &a0 {x: x}\n";
  for (int i = 1; i < 12; ++i) {
    const std::string name = "a" + std::to_string(i), before = "*a" + std::to_string(i - 1);
    lists += name + ": &" + name + " [";
    maps += name + ": &" + name + " {";
    for (int k = 0; k < 9; ++k) {
      lists += (k > 0 ? ", " : "") + before;
      maps += (k > 0 ? ", k" : "k") + std::to_string(k) + ": " + before;
    }
    lists += "]\n";
    maps += "}\n";
  }
  EXPECT_THAT(refusal(ConfigSyntax::kYaml, lists), HasSubstr(": more than 20000 values in the settings"));
  EXPECT_THAT(refusal(ConfigSyntax::kYaml, maps), HasSubstr(": more than 20000 values in the settings"));
}

TEST_F(ConfigFileTest, ThousandsOfSettingsAreRefused) {
  std::string yaml, json = "{", nested = "dataset:\n", list = "{\"dataset\": [\"a\"";
  for (int i = 0; i < 30'000; ++i) {
    yaml += "zkey" + std::to_string(i) + ": 1\n";
    json += "\"zkey" + std::to_string(i) + "\": 1,\n";
    nested += "  zkey" + std::to_string(i) + ": 1\n";
    list += ", \"a\"";
  }
  EXPECT_EQ(refusal(ConfigSyntax::kYaml, yaml), "run.cfg:1001: more than 1000 settings in one file");
  EXPECT_EQ(refusal(ConfigSyntax::kJson, json + "\"x\": 1}"),
            "run.cfg:1001: more than 1000 settings in one file");
  EXPECT_THAT(refusal(ConfigSyntax::kYaml, nested), HasSubstr("more than 20000 values in the settings"));
  EXPECT_THAT(refusal(ConfigSyntax::kJson, list + "]}"), HasSubstr("more than 20000 values in the settings"));
}

}  // namespace
}  // namespace tessera
