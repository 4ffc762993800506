// Every word of --fsdp and key of --fsdp_config: what it sets, what has no effect and why, what is refused.
#include "settings/fsdp/fsdp_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>

#include "base/log.h"
#include "formats/huggingface/model_config.h"
#include "formats/huggingface/model_families.h"
#include "io/file.h"
#include "settings/compat/compat_table.h"
#include "settings/config_file.h"
#include "settings/resolved_settings.h"
#include "settings/run_settings.h"
#include "support/settings/arguments_test_support.h"
#include "test_folder.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

struct FsdpFlag {
  std::string name;
  std::vector<std::string> values;
};

// The result of flags on the command line.
struct FsdpOutcome {
  RunSettings spec;
  FlagTable table;
  std::vector<std::string> messages;
  std::string error;

  std::string stage() const {
    return spec.sharding.stage ? fmt::format("{} {}", *spec.sharding.stage, spec.sharding.gather_schedule)
                               : "none";
  }
};

std::unique_ptr<FsdpOutcome> fsdp_outcome(const std::vector<FsdpFlag>& flags, const std::string& yaml = "") {
  auto outcome = std::make_unique<FsdpOutcome>();
  declare_training_flags(&outcome->table, &outcome->spec);
  LogTap tap;
  try {
    for (const FsdpFlag& flag : flags) {
      outcome->table.set(*outcome->table.find(flag.name), flag.values, kCommandLineOrigin);
    }
    if (!yaml.empty()) apply_config_text(yaml, ConfigSyntax::kYaml, "run.yaml", &outcome->table);
    apply_script_arguments(&outcome->table, &outcome->spec);
    apply_fsdp(&outcome->table, &outcome->spec);
  } catch (const Error& error) {
    outcome->error = error.what();
  }
  outcome->messages = tap.take();
  return outcome;
}

std::unique_ptr<FsdpOutcome> with_config(const json& config, const std::string& words = "true") {
  return fsdp_outcome({{"fsdp", {words}}, {"fsdp_config", {config.dump()}}});
}

std::string stage_of(const std::string& words) { return fsdp_outcome({{"fsdp", {words}}})->stage(); }
std::string stage_with(const json& config, const std::string& words = "true") {
  const auto outcome = with_config(config, words);
  return outcome->error.empty() ? outcome->stage() : outcome->error;
}

TEST(FsdpSettings, EveryWordHasItsStage) {
  EXPECT_EQ(stage_of("full_shard"), "3 auto");
  EXPECT_EQ(stage_of("shard_grad_op"), "2 auto");
  EXPECT_EQ(stage_of("no_shard"), "0 auto");
  EXPECT_EQ(stage_of("hybrid_shard"), "3 per_step");
  EXPECT_EQ(stage_of("hybrid_shard_zero2"), "2 auto");
  for (const char* full : {"true", "True", "1", "auto_wrap", "offload", "full_shard auto_wrap", "FULL_SHARD",
                           "auto_wrap,full_shard", "full_shard full_shard offload auto_wrap"})
    EXPECT_EQ(stage_of(full), "3 auto") << full;
  EXPECT_EQ(fsdp_outcome({{"fsdp", {"shard_grad_op", "auto_wrap"}}})->stage(), "2 auto");
  for (const char* off : {"", "false", "False", "0", "none", "null"}) EXPECT_EQ(stage_of(off), "none") << off;
  EXPECT_EQ(fsdp_outcome({{"fsdp", {}}})->stage(), "none");
  for (const CompatName& name : compat_table("transformers").names) {
    if (name.name.starts_with("fsdp.")) {
      EXPECT_EQ(fsdp_outcome({{"fsdp", {std::string(name.name.substr(5))}}})->error, "") << name.name;
    }
  }
}

TEST(FsdpSettings, WordsThatAreWrongOrContradictAreRefused) {
  const auto error = [](const std::string& words) { return fsdp_outcome({{"fsdp", {words}}})->error; };
  EXPECT_EQ(error("full_shrad auto_wrap"),
            "command line: --fsdp: expected some of auto_wrap, full_shard, hybrid_shard, hybrid_shard_zero2, "
            "no_shard, offload, shard_grad_op, true, found 'full_shrad'");
  EXPECT_THAT(error("full_shard shard_grad_op"),
              HasSubstr("--fsdp: expected one strategy, found full_shard and shard_grad_op"));
  EXPECT_THAT(error("2"), HasSubstr("expected some of"));
  EXPECT_THAT(error("false full_shard"), HasSubstr("--fsdp: false stands alone"));
}

TEST(FsdpSettings, AConfigurationFileGivesWordsInEveryForm) {
  for (const char* yaml : {"fsdp: shard_grad_op auto_wrap\n", "fsdp: [shard_grad_op, auto_wrap]\n",
                           "fsdp: true\nfsdp_config: {fsdp_reshard_after_forward: false}\n"})
    EXPECT_EQ(fsdp_outcome({}, yaml)->stage(), "2 auto") << yaml;
  EXPECT_EQ(fsdp_outcome({}, "fsdp: true\n")->stage(), "3 auto");
  for (const char* yaml : {"fsdp: false\n", "fsdp: ''\n", "fsdp:\n", "fsdp: []\n"})
    EXPECT_EQ(fsdp_outcome({}, yaml)->stage(), "none") << yaml;
  EXPECT_EQ(fsdp_outcome({}, "\nfsdp: nonsense\n")->error.substr(0, 28), "run.yaml:2: --fsdp: expected");
}

TEST(FsdpSettings, TheConfigurationDecidesBeforeTheWords) {
  EXPECT_EQ(stage_with({{"reshard_after_forward", true}}), "3 auto");
  EXPECT_EQ(stage_with({{"reshard_after_forward", "false"}}), "2 auto");
  EXPECT_EQ(stage_with({{"fsdp_reshard_after_forward", "NO_SHARD"}, {"fsdp_version", 1}}), "0 auto");
  EXPECT_EQ(stage_with({{"sharding_strategy", "HYBRID_SHARD"}}), "3 per_step");
  EXPECT_EQ(stage_with({{"sharding_strategy", 2}}), "2 auto");
  EXPECT_EQ(stage_with({{"sharding_strategy", "_HYBRID_SHARD_ZERO2"}, {"version", "1"}}), "2 auto");
  EXPECT_EQ(stage_with(json::object(), "no_shard"), "0 auto");
  EXPECT_EQ(stage_with({{"version", 1}}, "no_shard"), "0 auto");

  const auto decided = with_config({{"reshard_after_forward", false}}, "full_shard auto_wrap");
  EXPECT_EQ(decided->stage(), "2 auto");
  EXPECT_THAT(
      decided->messages,
      Contains(HasSubstr("--fsdp full_shard has no effect: --fsdp_config: reshard_after_forward false "
                         "decides, as in Transformers")));
}

TEST(FsdpSettings, VersionsHaveTheirOwnStrategies) {
  EXPECT_EQ(stage_with({{"version", 2}}, "hybrid_shard"),
            "--fsdp hybrid_shard needs version 1 in fsdp_config, as in Transformers, found 2");
  EXPECT_THAT(stage_with({{"version", 2}, {"sharding_strategy", "NO_SHARD"}}),
              HasSubstr("sharding_strategy no_shard needs version 1"));
  EXPECT_EQ(stage_with({{"version", 2}, {"sharding_strategy", "FULL_SHARD"}}), "3 auto");
  EXPECT_THAT(stage_with({{"version", 2}, {"reshard_after_forward", "shard_grad_op"}}),
              HasSubstr("expected true or false beside version 2"));
  EXPECT_THAT(stage_with({{"version", 1}, {"reshard_after_forward", true}}),
              HasSubstr("expected a strategy such as full_shard beside version 1"));
  EXPECT_THAT(stage_with({{"version", 2}, {"state_dict_type", "local_state_dict"}}),
              HasSubstr("expected FULL_STATE_DICT or SHARDED_STATE_DICT beside version 2"));
  EXPECT_THAT(stage_with({{"version", 3}}), HasSubstr("version: expected 1 or 2, found 3"));
}

TEST(FsdpSettings, WhatContradictsIsRefusedWithBothSources) {
  EXPECT_EQ(fsdp_outcome({{"fsdp", {"full_shard", "auto_wrap"}}, {"zero_stage", {"2"}}})->error,
            "--fsdp full_shard means zero_stage 3, which contradicts zero_stage 2: leave one of "
            "them out");
  EXPECT_EQ(fsdp_outcome({{"zero_stage", {"3"}}}, "seed: 1\nfsdp: shard_grad_op\n")->error,
            "run.yaml:2: fsdp shard_grad_op means zero_stage 2, which contradicts zero_stage 3: "
            "leave one of them out");
  EXPECT_EQ(fsdp_outcome({{"fsdp", {"full_shard"}}, {"zero_stage", {"3"}}})->stage(), "3 auto");
  EXPECT_THAT(fsdp_outcome({{"fsdp", {"hybrid_shard"}}, {"gather_schedule", {"per_layer"}}})->error,
              HasSubstr("--fsdp hybrid_shard means gather_schedule per_step"));
  EXPECT_EQ(fsdp_outcome({{"fsdp", {"hybrid_shard"}}, {"gather_schedule", {"auto"}}})->stage(), "3 per_step");
  EXPECT_EQ(fsdp_outcome({{"fsdp", {"full_shard"}}, {"deepspeed", {"ds.json"}}})->error,
            "--fsdp contradicts deepspeed, as in Transformers: leave one of them out");
  EXPECT_EQ(fsdp_outcome({{"fsdp", {"false"}}, {"deepspeed", {"ds.json"}}})->error, "");
  EXPECT_EQ(stage_with({{"sharding_strategy", "NO_SHARD"}}, "full_shard"),
            "--fsdp_config: sharding_strategy no_shard contradicts --fsdp full_shard: leave one of them out");
  EXPECT_THAT(stage_with({{"sharding_strategy", "NO_SHARD"}, {"reshard_after_forward", true}}),
              HasSubstr("contradicts --fsdp_config: reshard_after_forward true"));
  EXPECT_THAT(stage_with({{"cpu_offload", true}, {"offload_params", false}}), HasSubstr("contradicts"));
  EXPECT_THAT(stage_with({{"version", 1}, {"fsdp_version", 1}}), HasSubstr("version: given twice"));
}

TEST(FsdpSettings, ActivationCheckpointingIsGradientCheckpointing) {
  EXPECT_TRUE(with_config({{"activation_checkpointing", true}})->spec.placement.gradient_checkpointing);
  EXPECT_FALSE(with_config({{"activation_checkpointing", "no"}})->spec.placement.gradient_checkpointing);
  const auto beside = [](const char* ours, bool theirs) {
    return fsdp_outcome({{"fsdp", {"true"}},
                         {"gradient_checkpointing", {ours}},
                         {"fsdp_config", {json{{"fsdp_activation_checkpointing", theirs}}.dump()}}});
  };
  EXPECT_THAT(beside("true", true)->error,
              HasSubstr("activation_checkpointing true and gradient_checkpointing true are the same"));
  EXPECT_TRUE(beside("true", false)->spec.placement.gradient_checkpointing);
  EXPECT_TRUE(beside("false", true)->spec.placement.gradient_checkpointing);
  EXPECT_FALSE(beside("false", false)->spec.placement.gradient_checkpointing);
  EXPECT_THAT(with_config({{"activation_checkpointing_offload", true}})->error,
              HasSubstr("needs activation_checkpointing true"));
  const json offloaded = {{"activation_checkpointing_offload", true}, {"activation_checkpointing", true}};
  EXPECT_THAT(
      with_config(offloaded)->messages,
      Contains(HasSubstr("activation_checkpointing_offload true has no effect: the inputs of layers")));
  json old = offloaded;
  old["version"] = 1;
  EXPECT_THAT(with_config(old)->error, HasSubstr("needs version 2"));
}

TEST(FsdpSettings, OffloadKeepsWeightsOnTheHostOfACard) {
  for (const auto& [words, config] : {std::pair{"full_shard offload", json::object()},
                                      std::pair{"true", json{{"fsdp_offload_params", true}}},
                                      std::pair{"true", json{{"cpu_offload", "yes"}}}}) {
    const std::vector<FsdpFlag> flags = {{"fsdp", {words}}, {"fsdp_config", {config.dump()}}};
    EXPECT_THAT(fsdp_outcome(flags)->messages, Contains(HasSubstr("in the memory of the processors anyway")));
    EXPECT_EQ(fsdp_outcome(flags)->spec.placement.param_device, OffloadDevice::kNone);
    std::vector<FsdpFlag> on_card = flags;
    on_card.push_back({"device", {"cuda"}});
    EXPECT_EQ(fsdp_outcome(on_card)->spec.placement.param_device, OffloadDevice::kCpu) << words;
    on_card.push_back({"offload_param_device", {"nvme"}});
    EXPECT_THAT(fsdp_outcome(on_card)->error, HasSubstr("contradicts offload_param_device nvme"));
  }
  EXPECT_THAT(with_config({{"cpu_offload", false}}, "offload")->messages,
              Contains(HasSubstr("--fsdp offload has no effect: --fsdp_config: cpu_offload false decides")));
}

TEST(FsdpSettings, APrecisionPolicyMustAgreeWithTheType) {
  const auto sent = [](const json& policy, const char* dtype = "bfloat16") {
    const auto outcome = fsdp_outcome({{"fsdp", {"true"}},
                                       {"dtype", {dtype}},
                                       {"fsdp_config", {json{{"mixed_precision_policy", policy}}.dump()}}});
    return outcome->error.empty() ? outcome->spec.sharding.communication_dtype : std::nullopt;
  };
  EXPECT_EQ(sent("bf16"), DType::kBF16);
  EXPECT_EQ(sent("fp32", "float32"), DType::kF32);
  EXPECT_EQ(sent({{"param_dtype", "torch.bfloat16"}, {"reduce_dtype", "torch.float32"}}), DType::kF32);
  EXPECT_EQ(sent({{"param_dtype", "bf16"}, {"output_dtype", "fp32"}}), DType::kBF16);
  const auto error = [](const json& policy) {
    return with_config({{"mixed_precision_policy", policy}})->error;
  };
  EXPECT_EQ(error("fp32"),
            "--fsdp_config: mixed_precision_policy: fp32 contradicts dtype bfloat16: give dtype float32");
  EXPECT_THAT(error("fp16"), HasSubstr("mixed_precision_policy: expected bf16 or fp32"));
  EXPECT_THAT(error({{"reduce_dtype", "bf16"}}), HasSubstr("expected param_dtype"));
  EXPECT_THAT(error({{"param_dtype", "bf16"}, {"x", 1}}), HasSubstr("unknown key 'x'"));
}

// A value of every key that is what happens anyway, and one that is not.
struct KeyValues {
  const char* key;
  json silent;
  json noted;
};
const std::vector<KeyValues> kWithoutEffect = {
    {"auto_wrap_policy", "TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP"},
    {"backward_prefetch", "backward_pre", "BACKWARD_POST"},
    {"cpu_offload_pin_memory", nullptr, true},
    {"cpu_ram_efficient_loading", true, "false"},
    {"final_state_dict_type", "FULL_STATE_DICT", "SHARDED_STATE_DICT"},
    {"forward_prefetch", true, false},
    {"limit_all_gathers", "true", false},
    {"min_num_params", 0, 100000000},
    {"state_dict_type", "FULL_STATE_DICT", "SHARDED_STATE_DICT"},
    {"sync_module_states", true, false},
    {"use_orig_params", true, false},
    {"xla_fsdp_grad_ckpt", false, true},
    {"xla_fsdp_settings", json::object(), json{{"compute_dtype", "float32"}}},
    {"xla_fsdp_v2", false, true}};
const std::set<std::string> kWithMeaning = {"activation_checkpointing",
                                            "activation_checkpointing_offload",
                                            "cpu_offload",
                                            "ignored_modules",
                                            "mixed_precision_policy",
                                            "offload_params",
                                            "reshard_after_forward",
                                            "sharding_strategy",
                                            "transformer_cls_names_to_wrap",
                                            "transformer_layer_cls_to_wrap",
                                            "version",
                                            "xla"};

TEST(FsdpSettings, EveryKeyIsSilentNotedOrHasAMeaning) {
  std::set<std::string> tested = kWithMeaning;
  for (const auto& [key, silent, noted] : kWithoutEffect) {
    tested.insert(key);
    for (const std::string& name : {std::string(key), fmt::format("fsdp_{}", key)}) {
      const auto quiet = with_config({{name, silent}});
      EXPECT_EQ(quiet->error, "") << name;
      EXPECT_THAT(quiet->messages, IsEmpty()) << name;
      const auto told = with_config({{name, noted}});
      EXPECT_EQ(told->error, "") << name;
      EXPECT_THAT(told->messages, Contains(AllOf(HasSubstr(fmt::format("--fsdp_config: {} ", key)),
                                                 HasSubstr(" has no effect: "))))
          << name;
      EXPECT_EQ(told->stage(), "3 auto") << name;
    }
  }
  for (const CompatName& name : compat_table("transformers").names) {
    if (!name.name.starts_with("fsdp_config.")) continue;
    EXPECT_EQ(tested.count(std::string(name.name.substr(12))), 1u) << name.name;
  }
}

TEST(FsdpSettings, ReasonsAreGivenOnce) {
  const auto outcome = with_config(
      {{"forward_prefetch", false}, {"backward_prefetch", "NO_PREFETCH"}, {"use_orig_params", false}});
  EXPECT_THAT(
      outcome->messages,
      Contains(HasSubstr("--fsdp_config: backward_prefetch NO_PREFETCH, forward_prefetch false have no "
                         "effect: the next layers are fetched")));
  EXPECT_EQ(outcome->messages.size(), 2u);
}

TEST(FsdpSettings, KeysAndValuesThatAreWrongAreRefusedByName) {
  const auto error = [](const json& config) { return with_config(config)->error; };
  EXPECT_THAT(error({{"wrap", 1}}), HasSubstr("--fsdp_config: unknown key 'wrap'; there are activation_ch"));
  EXPECT_THAT(error({{"param_init_fn", "f"}}), HasSubstr("unknown key 'param_init_fn'"));
  EXPECT_THAT(error({{"xla", true}}), HasSubstr("xla: true is not supported: there is no XLA"));
  EXPECT_EQ(error({{"xla", false}}), "");
  EXPECT_THAT(error({{"ignored_modules", {"a"}}}), HasSubstr("ignored_modules: "));
  EXPECT_EQ(error({{"ignored_modules", json::array()}}), "");
  EXPECT_THAT(error({{"use_orig_params", "maybe"}}),
              HasSubstr("use_orig_params: expected true or false, found"));
  EXPECT_THAT(error({{"forward_prefetch", json::array({true})}}), HasSubstr("expected true or false"));
  EXPECT_THAT(error({{"min_num_params", -1}}), HasSubstr("min_num_params: expected a number of parameters"));
  EXPECT_THAT(error({{"backward_prefetch", "PRE"}}),
              HasSubstr("backward_prefetch: expected BACKWARD_PRE, BACKWARD_POST, NO_PREFETCH, found"));
  EXPECT_THAT(error({{"reshard_after_forward", 8}}), HasSubstr("expected true, false, full_shard, "));
  EXPECT_THAT(error({{"sharding_strategy", true}}), HasSubstr("sharding_strategy: expected full_shard, "));
  EXPECT_THAT(error({{"transformer_layer_cls_to_wrap", {1}}}), HasSubstr("expected names of classes"));
  EXPECT_THAT(error(json::array()), HasSubstr("expected a JSON object"));
}

TEST(FsdpSettings, WithoutFsdpItsConfigurationHasNoEffect) {
  const auto outcome = fsdp_outcome({{"fsdp_config", {R"({"reshard_after_forward": false})"}}});
  EXPECT_EQ(outcome->stage(), "none");
  EXPECT_THAT(outcome->messages, Contains(HasSubstr("--fsdp_config has no effect: fsdp is not set")));
  EXPECT_THAT(fsdp_outcome({{"fsdp_config", {"{}"}}})->messages, IsEmpty());
  EXPECT_THAT(fsdp_outcome({{"fsdp_config", {R"({"wrap": 1})"}}})->error, HasSubstr("unknown key 'wrap'"));
  const auto classes = fsdp_outcome({{"fsdp_transformer_layer_cls_to_wrap", {"Nonsense"}}});
  EXPECT_THAT(classes->messages, Contains(HasSubstr("has no effect: fsdp is not set")));
  EXPECT_THAT(classes->spec.sources.fsdp.layer_classes, IsEmpty());
}

TEST(FsdpSettings, AFileIsNamedInMessages) {
  const TestFolder folder;
  const std::string file = folder / "fsdp.json";
  write_text_file(file, R"({"fsdp_reshard_after_forward": false, "fsdp_use_orig_params": false})");
  const auto outcome = fsdp_outcome({{"fsdp", {"true"}}, {"fsdp_config", {file}}});
  EXPECT_EQ(outcome->stage(), "2 auto");
  EXPECT_EQ(outcome->table.origin("zero_stage"), file + ": reshard_after_forward false");
  EXPECT_THAT(outcome->messages, Contains(HasSubstr(file + ": use_orig_params false has no effect")));
  EXPECT_THAT(fsdp_outcome({{"fsdp_config", {"/missing/fsdp.json"}}})->error,
              HasSubstr("/missing/fsdp.json"));
  write_text_file(file, "{");
  EXPECT_THAT(fsdp_outcome({{"fsdp_config", {file}}})->error, HasSubstr("fsdp.json"));
}

TEST(FsdpSettings, TheSourceOfAStageIsShown) {
  const auto outcome = fsdp_outcome({{"fsdp", {"shard_grad_op", "auto_wrap"}}});
  const RunSpec spec = read_run_spec(outcome->table, outcome->spec, 2);
  for (const ResolvedSetting& each : settings_with_origins(outcome->table, outcome->spec, spec)) {
    if (each.name != "zero_stage") continue;
    EXPECT_EQ(each.value, 2);
    EXPECT_STREQ(origin_name(each.origin), "fsdp");
    EXPECT_EQ(each.source, "--fsdp shard_grad_op");
  }
  const auto per_layer = fsdp_outcome({{"fsdp", {"shard_grad_op"}}, {"gather_schedule", {"per_layer"}}});
  try {
    read_run_spec(per_layer->table, per_layer->spec, 2);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("needs zero_stage 3, found 2 (--fsdp shard_grad_op)"));
  }
  LogTap tap;
  read_run_spec(outcome->table, outcome->spec, 1);
  EXPECT_THAT(tap.take(), testing::ElementsAre(HasSubstr("--fsdp shard_grad_op has no effect on one rank")));
  EXPECT_FALSE(training_arguments(spec).contains("fsdp")) << "zero_stage says it";
  EXPECT_EQ(training_arguments(spec)["zero_stage"], 2);
}

TEST(FsdpSettings, HybridShardingSaysHowItDiffers) {
  for (const char* word : {"hybrid_shard", "hybrid_shard_zero2"}) {
    testing::internal::CaptureStderr();
    fsdp_outcome({{"fsdp", {word}}});
    EXPECT_THAT(testing::internal::GetCapturedStderr(),
                HasSubstr(fmt::format("info: --fsdp {}: every node has all weights", word)));
  }
}

TEST(FsdpSettings, WrappedClassesMustBeInTheModel) {
  const auto error = [](const char* family, const json& names) -> std::string {
    ModelConfig config;
    config.family = family;
    const auto outcome = with_config({{"transformer_layer_cls_to_wrap", names}});
    EXPECT_EQ(outcome->error, "");
    try {
      check_wrapped_classes(outcome->spec.sources.fsdp, config);
    } catch (const Error& refused) {
      EXPECT_EQ(refused.code(), ExitCode::kBadConfig);
      return refused.what();
    }
    return "";
  };
  EXPECT_EQ(error("llama", "LlamaDecoderLayer"), "");
  EXPECT_EQ(error("mistral", {"MistralDecoderLayer"}), "");
  EXPECT_EQ(error("qwen2", "Embedding, Qwen2DecoderLayer"), "");
  EXPECT_EQ(error("qwen3", json::array()), "");
  EXPECT_EQ(error("t5", "T5Block"), "");
  EXPECT_EQ(error("bert", {"BertLayer"}), "");
  EXPECT_EQ(error("xlm-roberta", "XLMRobertaLayer"), "");
  EXPECT_EQ(error("modernbert", "ModernBertEncoderLayer"), "");
  EXPECT_THAT(error("t5", "BertLayer"), HasSubstr("its layers are of the class T5Block"));
  EXPECT_EQ(error("qwen3", "LlamaDecoderLayer"),
            "fsdp_config: transformer_layer_cls_to_wrap: the model has no module of the class "
            "'LlamaDecoderLayer'; its layers are of the class Qwen3DecoderLayer");
  EXPECT_THAT(error("llama", "llamadecoderlayer"), HasSubstr("LlamaDecoderLayer"));
  LogTap tap;
  EXPECT_EQ(error("llama", {"LlamaMLP", "LlamaDecoderLayer"}), "");
  EXPECT_THAT(
      tap.take(),
      testing::ElementsAre(HasSubstr("LlamaMLP has no effect: weights are gathered by LlamaDecoderLayer")));
  const auto old = fsdp_outcome({{"fsdp", {"true"}}, {"fsdp_transformer_layer_cls_to_wrap", {"T5Block"}}});
  EXPECT_EQ(old->spec.sources.fsdp.layer_classes, std::vector<std::string>{"T5Block"});
}

TEST(FsdpSettings, EveryFamilyHasItsLayerClass) {
  std::set<std::string> layers;
  for (const FamilyInfo& family : model_families()) layers.insert(family.layer_class);
  EXPECT_EQ(layers.size(), model_families().size());
  EXPECT_EQ(family_info("t5").layer_class, "T5Block");
}

// Of any words and keys together, each is honoured, noted or refused by name: the stage is that of the
// strategy which counts, and every value that is not what happens anyway is in a message.
TEST(FsdpSettings, RandomCombinationsAreSettled) {
  const std::vector<std::pair<std::string, std::string>> strategies = {{"full_shard", "3 auto"},
                                                                       {"shard_grad_op", "2 auto"},
                                                                       {"no_shard", "0 auto"},
                                                                       {"hybrid_shard", "3 per_step"},
                                                                       {"hybrid_shard_zero2", "2 auto"}};
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return random() % n; };
  int64_t num_refused = 0;
  for (int round = 0; round < 300; ++round) {
    const auto& [word, word_stage] = strategies[below(strategies.size())];
    std::vector<std::string> words = {word};
    if (below(2) == 0) words.push_back("auto_wrap");
    if (below(4) == 0) words.push_back("offload");
    std::ranges::shuffle(words, random);
    json config = json::object();
    std::set<std::string> noted;
    for (const auto& [key, silent, other] : kWithoutEffect) {
      if (below(3) != 0) continue;
      const bool is_noted = below(2) == 0;
      config[below(2) == 0 ? key : fmt::format("fsdp_{}", key)] = is_noted ? other : silent;
      if (is_noted) noted.insert(key);
    }
    const bool has_version_2 = below(4) == 0, has_reshard = below(4) == 0, reshards = below(2) == 0;
    if (has_version_2) config["version"] = 2;
    if (has_reshard) config["reshard_after_forward"] = reshards;
    const auto outcome = fsdp_outcome({{"fsdp", words}, {"fsdp_config", {config.dump()}}});
    const std::string what = fmt::format("{} {}", fmt::join(words, " "), config.dump());
    if (has_version_2 && (word[0] == 'n' || word[0] == 'h')) {
      EXPECT_THAT(outcome->error, HasSubstr(word + " needs version 1")) << what;
      ++num_refused;
      continue;
    }
    EXPECT_EQ(outcome->error, "") << what;
    EXPECT_EQ(outcome->stage(), !has_reshard ? word_stage : reshards ? "3 auto" : "2 auto") << what;
    const std::string said = fmt::format("{}", fmt::join(outcome->messages, "\n"));
    for (const KeyValues& each : kWithoutEffect) {
      const bool is_told = said.find(fmt::format("--fsdp_config: {} ", each.key)) != std::string::npos ||
                           said.find(fmt::format(", {} ", each.key)) != std::string::npos;
      EXPECT_EQ(is_told, noted.contains(each.key)) << each.key << " of " << what;
    }
    EXPECT_EQ(said.find("offload has no effect") != std::string::npos,
              std::ranges::find(words, "offload") != words.end())
        << what;
  }
  EXPECT_GT(num_refused, 20);
}

TEST(FsdpSettings, AxolotlSwitchesItOnByItsConfiguration) {
  const std::string base = "base_model: m\nmicro_batch_size: 1\n";
  const auto of = [&](const std::string& lines) { return fsdp_outcome({}, base + lines); };
  EXPECT_EQ(of("fsdp:\nfsdp_config:\n")->stage(), "none");
  EXPECT_EQ(of("fsdp: [full_shard, auto_wrap]\n")->stage(), "3 auto");
  EXPECT_EQ(of("fsdp_version: 2\nfsdp_config:\n  reshard_after_forward: false\n")->stage(), "2 auto");
  const auto whole =
      of("fsdp_version: 2\nfsdp_config:\n  offload_params: false\n  cpu_ram_efficient_loading: true\n"
         "  auto_wrap_policy: TRANSFORMER_BASED_WRAP\n  transformer_layer_cls_to_wrap: LlamaDecoderLayer\n"
         "  state_dict_type: FULL_STATE_DICT\n  reshard_after_forward: true\n  activation_checkpointing: "
         "true\n");
  EXPECT_EQ(whole->error, "");
  EXPECT_EQ(whole->stage(), "3 auto");
  EXPECT_TRUE(whole->spec.placement.gradient_checkpointing);
  EXPECT_EQ(whole->spec.sources.fsdp.layer_classes, std::vector<std::string>{"LlamaDecoderLayer"});
  EXPECT_EQ(whole->table.origin("zero_stage"), "run.yaml:4: fsdp_config: reshard_after_forward true");
  EXPECT_THAT(of("fsdp_version: 1\nfsdp_config: {fsdp_version: 2}\n")->error,
              HasSubstr("run.yaml:3: fsdp_version: expected that of fsdp_config, found 1"));
  EXPECT_THAT(of("fsdp_version: 2\n")->messages, Contains(HasSubstr("fsdp_version has no effect")));
  EXPECT_THAT(of("fsdp_config: {wrap: 1}\n")->error, HasSubstr("unknown key 'wrap'"));
}

}  // namespace
}  // namespace tessera
