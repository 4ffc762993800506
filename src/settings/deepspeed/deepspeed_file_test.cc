#include "settings/deepspeed/deepspeed_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>

#include "base/error.h"
#include "expect_error.h"
#include "io/file.h"
#include "settings/compat/compat_table.h"
#include "test_folder.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

DeepSpeedFile parse(const std::string& text) { return parse_deepspeed(text, "ds.json"); }

std::string refusal(const std::string& text) {
  const Error error = error_of([&] { parse(text); });
  EXPECT_EQ(error.code(), ExitCode::kBadConfig) << text;
  return error.what();
}

std::string in_zero(const std::string& members) { return "{\"zero_optimization\": {" + members + "}}"; }

// The text of the note on a key, "" if there is none.
std::string note_on(const DeepSpeedFile& config, const std::string& key) {
  for (const DeepSpeedNote& note : config.notes) {
    if (note.key == key) return note.text;
  }
  return "";
}

bool warns_about(const DeepSpeedFile& config, const std::string& key) {
  return std::any_of(config.notes.begin(), config.notes.end(),
                     [&](const DeepSpeedNote& note) { return note.key == key && note.is_warning; });
}

TEST(DeepSpeedFile, FilesOfPublicProjectsAreRead) {
  for (const fs::path& folder : deepspeed_folders()) {
    int num_files = 0;
    for (const auto& entry : fs::directory_iterator(folder)) {
      const DeepSpeedFile config = read_deepspeed(entry.path());
      for (const DeepSpeedNote& note : config.notes)
        EXPECT_FALSE(note.is_warning) << entry.path() << ": " << note.key << ": " << note.text;
      EXPECT_GE(config.value<int64_t>("zero_optimization.stage"), 1) << entry.path();
      EXPECT_NE(config.find("bf16.enabled"), nullptr) << entry.path();
      ++num_files;
    }
    EXPECT_GE(num_files, 9) << folder;
  }
}

TEST(DeepSpeedFile, ValuesAutoAndAbsentAreToldApart) {
  const DeepSpeedFile config = parse(R"({
    "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": "auto", "gradient_clipping": 0.5,
    "bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 2},
    "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": "auto", "eps": 1e-7}}})");
  EXPECT_EQ(config.value<int64_t>("train_micro_batch_size_per_gpu"), 2);
  EXPECT_TRUE(config.is_auto("gradient_accumulation_steps"));
  EXPECT_EQ(config.find("train_batch_size"), nullptr);
  EXPECT_EQ(config.value<double>("gradient_clipping"), 0.5);
  EXPECT_TRUE(config.is_auto("bf16.enabled"));
  EXPECT_EQ(config.value<int64_t>("zero_optimization.stage"), 2);
  ASSERT_NE(config.find("optimizer"), nullptr);
  EXPECT_EQ(config.value<double>("optimizer.params.lr"), 1e-4);
  EXPECT_TRUE(config.is_auto("optimizer.params.betas"));
  EXPECT_EQ(config.value<double>("optimizer.params.eps"), 1e-7);
  EXPECT_EQ(config.find("optimizer.params.weight_decay"), nullptr);
  EXPECT_EQ(config.find("scheduler"), nullptr);
}

TEST(DeepSpeedFile, CommentsAndRelaxedSyntaxAreTaken) {
  const DeepSpeedFile config =
      parse("{ // of us\n zero_optimization: {stage: 3,}, # all\n bf16: {enabled: true} }");
  EXPECT_EQ(config.value<int64_t>("zero_optimization.stage"), 3);
  EXPECT_EQ(config.value<bool>("bf16.enabled"), true);
}

TEST(DeepSpeedFile, AnEmptySectionBf16IsOff) {
  EXPECT_EQ(parse(R"({"bf16": {}})").value<bool>("bf16.enabled"), false);
}

TEST(DeepSpeedFile, WholeNumbersMayBeFloatsOrTexts) {
  const DeepSpeedFile config = parse(R"({"train_batch_size": "16", "train_micro_batch_size_per_gpu": 2e0,
                "zero_optimization": {"stage": 1, "reduce_bucket_size": 5e8, "overlap_comm": "true"}})");
  EXPECT_EQ(config.value<int64_t>("train_batch_size"), 16);
  EXPECT_EQ(config.value<int64_t>("train_micro_batch_size_per_gpu"), 2);
  EXPECT_TRUE(warns_about(config, "train_batch_size"));
  EXPECT_EQ(note_on(config, "train_batch_size"), "\"16\" is a string, read as 16");
  EXPECT_TRUE(warns_about(config, "zero_optimization.overlap_comm"));
}

TEST(DeepSpeedFile, WrongTypesAreRefusedWithKeyAndValue) {
  EXPECT_EQ(refusal(R"({"train_batch_size": 1.5})"),
            "ds.json: train_batch_size: expected a whole number or \"auto\", found 1.5");
  EXPECT_EQ(refusal(R"({"train_batch_size": 0})"),
            "ds.json: train_batch_size: expected a whole number of at least 1, found 0");
  EXPECT_EQ(refusal(R"({"gradient_clipping": "much"})"),
            "ds.json: gradient_clipping: expected a finite number or \"auto\", found \"much\"");
  EXPECT_EQ(refusal(in_zero("\"stage\": 4")),
            "ds.json: zero_optimization.stage: expected 0, 1, 2 or 3, found 4");
  EXPECT_EQ(refusal(in_zero("\"overlap_comm\": 2")),
            "ds.json: zero_optimization.overlap_comm: expected true or false, found 2");
  EXPECT_EQ(refusal(in_zero("\"reduce_bucket_size\": -1")),
            "ds.json: zero_optimization.reduce_bucket_size: expected a whole number of at least 0, found -1");
  EXPECT_EQ(refusal(R"({"zero_optimization": 2})"),
            "ds.json: zero_optimization: expected an object { ... }, found 2");
  EXPECT_EQ(refusal(R"({"wall_clock_breakdown": "auto"})"),
            "ds.json: wall_clock_breakdown: expected true or false, found \"auto\"");
  EXPECT_EQ(
      refusal(R"({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}})"),
      "ds.json: optimizer.params.betas: expected two numbers such as [0.9, 0.999], found a list of 1, [0.9]");
  EXPECT_EQ(refusal(R"({"optimizer": {"type": "Adam", "params": {"lr": []}}})"),
            "ds.json: optimizer.params.lr: expected a finite number or \"auto\", found an empty list");
  EXPECT_EQ(refusal(R"({"checkpoint": {"tag_validation": "maybe"}})"),
            "ds.json: checkpoint.tag_validation: expected Warn, Ignore or Fail, found 'maybe'");
}

TEST(DeepSpeedFile, UnknownKeysAreRefusedWhereDeepSpeedDoes) {
  EXPECT_EQ(refusal(in_zero("\"overlap_com\": true")),
            "ds.json: zero_optimization.overlap_com: unknown key, which DeepSpeed rejects too; did you mean "
            "'overlap_comm'?");
  EXPECT_THAT(refusal(in_zero("\"offload_param\": {\"devise\": \"cpu\"}")),
              HasSubstr("zero_optimization.offload_param.devise: unknown key"));
  EXPECT_THAT(refusal(R"({"bf16": {"enable": true}})"), HasSubstr("bf16.enable: unknown key"));
  EXPECT_THAT(refusal(R"({"optimizer": {"type": "Adam", "params": {"learning_rate": 1}}})"),
              HasSubstr("optimizer.params.learning_rate: unknown key"));
  const DeepSpeedFile config = parse(R"({"gradient_cliping": 1, "activation_checkpointing": {"x": 1}})");
  EXPECT_TRUE(warns_about(config, "gradient_cliping"));
  EXPECT_THAT(note_on(config, "gradient_cliping"), HasSubstr("did you mean 'gradient_clipping'?"));
  EXPECT_TRUE(warns_about(config, "activation_checkpointing.x"));
}

TEST(DeepSpeedFile, NamesOfOtherProgramsLeadToTheKey) {
  const DeepSpeedFile config = parse(R"({"micro_batch_size": 1, "lr": 1e-4, "lora_rank": 8})");
  EXPECT_THAT(note_on(config, "micro_batch_size"),
              HasSubstr("did you mean 'train_micro_batch_size_per_gpu'?"));
  EXPECT_THAT(note_on(config, "lr"), HasSubstr(": it belongs in optimizer.params"));
  EXPECT_THAT(note_on(config, "lora_rank"), HasSubstr(": LoRA is a setting of the run"));
}

TEST(DeepSpeedFile, AllMistakesAreNamed) {
  EXPECT_EQ(
      refusal(R"({"bf16": {"enable": true}, "gradient_clipping": "x", "zero_optimization": {"stag": 1}})"),
      "3 mistakes: (1) ds.json: bf16.enable: unknown key, which DeepSpeed rejects too; did you mean "
      "'enabled'? (2) ds.json: gradient_clipping: expected a finite number or \"auto\", found \"x\" (3) "
      "ds.json: zero_optimization.stag: unknown key, which DeepSpeed rejects too; did you mean 'stage'?");
}

TEST(DeepSpeedFile, DuplicateKeysAreRefused) {
  EXPECT_EQ(refusal("{\"bf16\": {\"enabled\": true},\n \"bf16\": {}}"),
            "ds.json:2: key 'bf16' appears twice in one object");
}

TEST(DeepSpeedFile, BothNamesOfAKeyAreTakenButNotTogether) {
  EXPECT_EQ(parse(in_zero("\"max_live_parameters\": 0"))
                .value<int64_t>("zero_optimization.stage3_max_live_parameters"),
            0);
  EXPECT_EQ(refusal(in_zero("\"max_live_parameters\": 0, \"stage3_max_live_parameters\": 1e9")),
            "ds.json: zero_optimization.max_live_parameters: is another name for "
            "zero_optimization.stage3_max_live_parameters: give only one");
}

TEST(DeepSpeedFile, OptimizerStateIsOnADiskOnlyIfTheDeviceSaysSo) {
  const std::string aio = R"(, "aio": {"block_size": 262144, "queue_depth": 8, "thread_count": 1}})";
  const DeepSpeedFile disk = parse(
      R"({"zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/local"}})" + aio);
  EXPECT_EQ(disk.value<std::string>("zero_optimization.offload_optimizer.device"), "nvme");
  EXPECT_EQ(disk.value<std::string>("zero_optimization.offload_optimizer.nvme_path"), "/local");
  EXPECT_EQ(disk.value<int64_t>("aio.block_size"), 262144);
  EXPECT_EQ(disk.value<int64_t>("aio.queue_depth"), 8);
  EXPECT_TRUE(disk.notes.empty());
  for (const char* device : {"\"cpu\"", "\"none\"", "\"auto\""}) {
    const DeepSpeedFile memory = parse(
        fmt::format(R"({{"zero_optimization": {{"offload_optimizer": {{"device": {}}}}}{})", device, aio));
    EXPECT_NE(memory.value<std::string>("zero_optimization.offload_optimizer.device"), "nvme");
    EXPECT_EQ(note_on(memory, "aio"), "weights, gradients and optimizer state stay in memory") << device;
  }
}

TEST(DeepSpeedFile, WeightsAreOnADiskOnlyIfTheDeviceSaysSo) {
  const DeepSpeedFile disk = parse(
      R"({"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "/local", "buffer_count": 5,
          "buffer_size": 1e8, "max_in_cpu": 1e9, "pin_memory": true}}, "aio": {"block_size": 8192}})");
  EXPECT_EQ(disk.value<std::string>("zero_optimization.offload_param.device"), "nvme");
  EXPECT_EQ(disk.value<std::string>("zero_optimization.offload_param.nvme_path"), "/local");
  EXPECT_EQ(disk.value<int64_t>("aio.block_size"), 8192);
  for (const char* name : {"buffer_count", "buffer_size", "max_in_cpu"}) {
    EXPECT_EQ(note_on(disk, std::string("zero_optimization.offload_param.") + name),
              "embedding, head and three layers are in memory");
  }
  const DeepSpeedFile memory = parse(in_zero(R"("offload_param": {"device": "cpu", "nvme_path": "/local"})"));
  EXPECT_EQ(memory.value<std::string>("zero_optimization.offload_param.device"), "cpu");
  EXPECT_FALSE(memory.value<std::string>("zero_optimization.offload_param.nvme_path"));
  EXPECT_EQ(note_on(memory, "zero_optimization.offload_param"),
            "weights, gradients and optimizer state stay in memory");
}

TEST(DeepSpeedFile, DeprecatedKeysAreReadWithAWarning) {
  const DeepSpeedFile old = parse(R"({"zero_optimization": true, "bfloat16": {"enabled": true}})");
  EXPECT_EQ(old.value<int64_t>("zero_optimization.stage"), 1);
  EXPECT_EQ(old.value<bool>("bf16.enabled"), true);
  EXPECT_TRUE(warns_about(old, "zero_optimization"));
  const DeepSpeedFile offload =
      parse(in_zero("\"stage\": 3, \"cpu_offload\": true, \"cpu_offload_param\": true, "
                    "\"cpu_offload_use_pin_memory\": true, "
                    "\"stage3_gather_fp16_weights_on_model_save\": true"));
  for (const char* key : {"cpu_offload", "cpu_offload_param", "cpu_offload_use_pin_memory",
                          "stage3_gather_fp16_weights_on_model_save"}) {
    EXPECT_TRUE(warns_about(offload, std::string("zero_optimization.") + key)) << key;
  }
  EXPECT_EQ(note_on(offload, "zero_optimization.offload_optimizer"),
            "weights, gradients and optimizer state stay in memory");
  EXPECT_EQ(refusal(in_zero("\"cpu_offload\": true, \"offload_optimizer\": {\"device\": \"cpu\"}")),
            "ds.json: zero_optimization.cpu_offload: is the old name of offload_optimizer: give only one");
  EXPECT_TRUE(
      warns_about(parse(R"({"bfloat16": {"enabled": true}, "bf16": {"enabled": false}})"), "bfloat16"));
}

TEST(DeepSpeedFile, WhatChangesTheResultIsRefused) {
  for (const auto& [text, fragment] : std::vector<std::pair<std::string, std::string>>{
           {R"({"fp16": {"enabled": true}})",
            "fp16.enabled: true is not supported: float16 needs loss scaling"},
           {R"({"amp": {"enabled": true}})", "amp.enabled"},
           {R"({"torch_autocast": {"enabled": true}})", "torch_autocast.enabled"},
           {R"({"bf16": {"enabled": true, "bf16_optimizer_states": true}})", "bf16.bf16_optimizer_states"},
           {in_zero("\"zenflow\": {}"), "zenflow"},
           {R"({"optimizer": {"type": "Lamb"}})",
            "optimizer.type: expected one of Adam, AdamW, Lion, Muon, found 'Lamb'"},
           {R"({"optimizer": {"type": "OneBitAdam"}})", "found 'OneBitAdam': gradients rounded to one bit"},
           {R"({"optimizer": {"type": "zerooneadam"}})", "gradients rounded to one bit"},
           {R"({"optimizer": {"params": {}}})",
            "optimizer.type: expected one of Adam, AdamW, Lion, Muon, found nothing"},
           {R"({"optimizer": {"type": "Lion", "params": {"eps": 1e-8}}})",
            "optimizer.params.eps: Lion has no eps"},
           {R"({"optimizer": {"type": "Lion", "params": {"adam_w_mode": true}}})", "Lion has no adam_w_mode"},
           {R"({"optimizer": {"type": "Lion", "params": {"momentum": 0.9}}})", "Lion has no momentum"},
           {R"({"optimizer": {"type": "Muon", "params": {"momentum": 0.9}}})",
            "optimizer.params.lr: expected a number"},
           {R"({"optimizer": {"type": "Muon", "params": {"lr": 1, "muon_lr": 2}}})", "one learning rate"},
           {R"({"optimizer": {"type": "Adam", "params": {"momentum": 0.9}}})", "Adam has no momentum"},
           {R"({"optimizer": {"type": "Adam", "params": {"amsgrad": true}}})", "optimizer.params.amsgrad"},
           {R"({"optimizer": {"type": "Adam", "params": {"max_grad_norm": 1}}})", "write gradient_clipping"},
           {R"({"optimizer": {"type": "Adam", "params": {"bias_correction": false}}})", "bias_correction"},
           {R"({"scheduler": {"type": "CosineAnnealing"}})", "scheduler.type: expected one of LRRangeTest"},
           {R"({"elasticity": {"enabled": true}})", "elasticity.enabled"},
           {R"({"curriculum_learning": {"enabled": true}})", "curriculum_learning"},
           {R"({"compression_training": {"weight_quantization": {"shared_parameters": {"enabled": true}}}})",
            "compression_training"},
           {R"({"tensor_parallel": {"autotp_size": 4}})", "tensor_parallel.autotp_size"},
           {R"({"sequence_parallel_size": 0})", "sequence_parallel_size"},
           {R"({"gradient_allreduce_op": "sum", "zero_optimization": {"stage": 3}})",
            "gradient_allreduce_op"},
           {in_zero("\"stage\": 2, \"offload_optimizer\": {\"ratio\": 0.5}"), "offload_optimizer.ratio"},
           {in_zero("\"offload_param\": {\"device\": \"gpu\"}"), "expected none, cpu or nvme"},
       }) {
    EXPECT_THAT(refusal(text), HasSubstr(fragment)) << text;
  }
}

TEST(DeepSpeedFile, QuantizationBetweenNodesIsTaken) {
  const DeepSpeedFile config = parse(in_zero(
      R"("zero_quantized_weights": true, "zero_quantized_gradients": true, "zeropp_loco_param": {"err_beta": 0.8})"));
  EXPECT_EQ(config.value<bool>("zero_optimization.zero_quantized_weights"), true);
  EXPECT_EQ(config.value<bool>("zero_optimization.zero_quantized_gradients"), true);
  EXPECT_EQ(note_on(config, "zero_optimization.zeropp_loco_param"),
            "errors of quantized gradients are fed back whole");
  EXPECT_EQ(parse("{}").value<bool>("zero_optimization.zero_quantized_gradients"), std::nullopt);
}

TEST(DeepSpeedFile, WhatIsOffIsTaken) {
  parse(
      R"({"fp16": {"enabled": false, "loss_scale": 0}, "amp": {"enabled": "auto"}, "elasticity": {"enabled": false},
            "compression_training": {"weight_quantization": {"shared_parameters": {"enabled": false}}},
            "data_efficiency": {"enabled": false, "data_sampling": {"enabled": true}},
            "gradient_allreduce_op": "sum", "tensor_parallel": {"autotp_size": 1},
            "zero_optimization": {"stage": "auto", "zenflow": null, "zero_quantized_gradients": false}})");
}

TEST(DeepSpeedFile, NullIsTakenWhereDeepSpeedTakesIt) {
  const DeepSpeedFile config = parse(R"({"train_batch_size": null, "communication_data_type": null,
      "zero_optimization": {"overlap_comm": null, "offload_param": null}, "steps_per_print": null})");
  EXPECT_EQ(config.find("train_batch_size"), nullptr);
  EXPECT_EQ(
      refusal(R"({"gradient_clipping": null})"),
      "ds.json: gradient_clipping: expected a finite number, found null, which DeepSpeed does not take for "
      "its default; leave the key out");
  EXPECT_THAT(refusal(R"({"zero_optimization": {"stage": null}})"), HasSubstr("zero_optimization.stage: "));
  EXPECT_THAT(refusal(R"({"optimizer": null})"), HasSubstr("optimizer: expected an object"));
}

TEST(DeepSpeedFile, KeysOfRelease0198AreKnown) {
  const DeepSpeedFile config = parse(R"({"disable_python_gc": true,
      "data_types": {"keep_in_fp32_modules": ["norm"]}, "hybrid_engine": {"enable_cuda_graph": false},
      "zero_optimization": {"stage": 1, "compute_grad_norm": false, "parameter_alignment": true}})");
  for (const char* key :
       {"disable_python_gc", "data_types.keep_in_fp32_modules", "zero_optimization.parameter_alignment"}) {
    EXPECT_NE(note_on(config, key), "") << key;
    EXPECT_FALSE(warns_about(config, key)) << key;
  }
  EXPECT_EQ(config.value<bool>("zero_optimization.compute_grad_norm"), false);
  EXPECT_THAT(refusal(R"({"data_types": {"keep_in_fp32_modules": [1]}})"), HasSubstr("a list of names"));
}

// tests/data/foreign-settings/deepspeed.txt has the keys of DeepSpeed 0.19.8.
TEST(DeepSpeedFile, EveryKeyOfDeepSpeedIsSettled) {
  const CompatTable& table = compat_table("deepspeed");
  const auto is_known = [&](const std::string& name) { return table.find(name) != nullptr; };
  const std::set<std::string> rewritten = {"bfloat16", "zero_optimization.cpu_offload",
                                           "zero_optimization.cpu_offload_param",
                                           "zero_optimization.cpu_offload_use_pin_memory",
                                           "zero_optimization.stage3_gather_fp16_weights_on_model_save"};
  std::ifstream file(data_folder() / "foreign-settings" / "deepspeed.txt");
  int64_t num_names = 0;
  for (std::string name; std::getline(file, name);) {
    if (name.starts_with('#')) continue;
    ++num_names;
    // A section whose keys are not listed is decided by a single entry.
    const std::string section = name.substr(0, name.rfind('.'));
    const bool is_whole =
        section != name && is_known(section) && std::ranges::none_of(table.names, [&](const auto& key) {
          return key.name.starts_with(section + ".");
        });
    EXPECT_TRUE(is_known(name) || is_whole || rewritten.contains(name)) << name;
  }
  EXPECT_GT(num_names, 200);
}

TEST(DeepSpeedFile, SeveralMistakesInParamsKeepTheirPaths) {
  EXPECT_EQ(
      refusal(R"({"optimizer": {"type": "AdamW", "params": {"amsgrad": true, "maximize": true}}})"),
      "2 mistakes: (1) ds.json: optimizer.params.amsgrad: true is not supported: write false (2) ds.json: "
      "optimizer.params.maximize: true is not supported: the loss is minimized; write false");
}

TEST(DeepSpeedFile, EveryKeyWithoutEffectIsNoted) {
  const DeepSpeedFile config = parse(R"({"steps_per_print": 10, "wall_clock_breakdown": false,
      "sparse_gradients": false,
      "zero_optimization": {"stage": 2, "reduce_scatter": true}})");
  for (const char* key :
       {"steps_per_print", "wall_clock_breakdown", "sparse_gradients", "zero_optimization.reduce_scatter"}) {
    EXPECT_GT(note_on(config, key).size(), 10u) << key;
    EXPECT_FALSE(warns_about(config, key)) << key;
  }
}

TEST(DeepSpeedFile, MonitorsThatAreOnHaveAFolder) {
  const DeepSpeedFile config = parse(R"({"tensorboard": {"enabled": true, "output_path": "out/"},
      "csv_monitor": {"enabled": true, "output_path": "auto", "job_name": "j"},
      "wandb": {"enabled": true, "project": "p"}, "comet": {"enabled": false, "project": "p"}})");
  EXPECT_EQ(config.monitor_folder("tensorboard"), "out/DeepSpeedJobName");
  EXPECT_EQ(config.monitor_folder("csv_monitor"), "j");
  EXPECT_TRUE(warns_about(config, "wandb"));
  EXPECT_THAT(note_on(config, "wandb"), HasSubstr("not supported"));
  EXPECT_FALSE(warns_about(config, "comet"));
  EXPECT_EQ(note_on(config, "comet"), "it is off");
  EXPECT_EQ(parse("{}").monitor_folder("tensorboard"), std::nullopt);
  EXPECT_THAT(refusal(R"({"csv_monitor": {"enabled": "on"}})"),
              HasSubstr("csv_monitor.enabled: expected true"));
  EXPECT_THAT(refusal(R"({"csv_monitor": {"path": "x"}})"), HasSubstr("path"));
}

TEST(DeepSpeedFile, TypesHaveTheSpellingOfDeepSpeed) {
  for (const auto& [given, type] : std::vector<std::pair<std::string, std::string>>{
           {"ADAM", "Adam"}, {"adamw", "AdamW"}, {"LION", "Lion"}}) {
    const DeepSpeedFile config =
        parse(R"({"optimizer": {"type": ")" + given + R"(", "params": {"lr": 1e-4, "betas": [0.9, 0.99]}}})");
    EXPECT_EQ(config.value<std::string>("optimizer.type"), type);
    EXPECT_EQ(config.value<double>("optimizer.params.lr"), 1e-4);
    EXPECT_EQ(config.value<std::vector<double>>("optimizer.params.betas"), (std::vector<double>{0.9, 0.99}));
  }
}

TEST(DeepSpeedFile, SchedulerKeepsItsParameters) {
  const DeepSpeedFile config = parse(R"({"scheduler": {"type": "warmupdecaylr",
      "params": {"total_num_steps": "auto", "warmup_num_steps": 1e1, "warmup_max_lr": "3e-4"}}})");
  EXPECT_EQ(config.value<std::string>("scheduler.type"), "WarmupDecayLR");
  EXPECT_EQ(*config.find("scheduler.params"),
            Json({{"total_num_steps", "auto"}, {"warmup_num_steps", 10}, {"warmup_max_lr", 3e-4}}));
  EXPECT_TRUE(warns_about(config, "scheduler.params.warmup_max_lr"));
  const DeepSpeedFile none =
      parse(R"({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 0}}})");
  EXPECT_EQ(none.value<int64_t>("scheduler.params.warmup_num_steps"), 2);
  EXPECT_TRUE(warns_about(none, "scheduler.params.warmup_num_steps"));
}

// {"bf16":{"enabled":true},"train_batch_size":4,"x":"???>>>"} has - and _ in URL-safe base64.
TEST(DeepSpeedFile, ArgumentIsAFileJsonOrBase64) {
  const TestFolder folder;
  write_text_file(folder / "ds.json", R"({"train_batch_size": 4})");
  EXPECT_EQ(read_deepspeed(folder / "ds.json").value<int64_t>("train_batch_size"), 4);
  EXPECT_EQ(read_deepspeed(" {train_batch_size: 4}").value<int64_t>("train_batch_size"), 4);
  for (const char* text : {"eyJ0cmFpbl9iYXRjaF9zaXplIjogNCwgIngiOiAiPz8_Pj4-In0=",
                           "eyJ0cmFpbl9iYXRjaF9zaXplIjogNCwgIngiOiAiPz8/Pj4+In0"}) {
    const DeepSpeedFile config = read_deepspeed(text);
    EXPECT_EQ(config.value<int64_t>("train_batch_size"), 4) << text;
    EXPECT_TRUE(warns_about(config, "x"));
  }
  for (const char* text : {"no-such-file.json", "bm90IGpzb24=", ""}) {
    expect_error(ExitCode::kNoInput, {"--deepspeed: expected a file, a JSON object or one in base64"},
                 [&] { read_deepspeed(text); });
  }
}

}  // namespace
}  // namespace tessera
