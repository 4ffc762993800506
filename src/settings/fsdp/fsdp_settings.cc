#include "settings/fsdp/fsdp_settings.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/huggingface/model_families.h"
#include "settings/compat/compat_table.h"
#include "settings/fields/fields.h"
#include "settings/run_settings.h"

namespace tessera {
namespace {

class FsdpApplication {
 public:
  FsdpApplication(FlagTable* table, RunSettings* spec)
      : table_(*table), spec_(*spec), fsdp_(spec->sources.fsdp) {}

  void run() {
    if (!fsdp_.is_on) {
      for (const char* flag : {"fsdp_config", "fsdp_transformer_layer_cls_to_wrap"}) {
        if (table_.is_set(flag) && (!fsdp_.config.empty() || !fsdp_.layer_classes.empty()))
          log_warning("{} has no effect: fsdp is not set, as in Transformers", where(flag));
      }
      fsdp_.layer_classes.clear();
      return;
    }
    if (!spec_.sources.deepspeed.empty()) {
      fail(ExitCode::kBadConfig, "{} contradicts deepspeed, as in Transformers: leave one of them out",
           where("fsdp"));
    }
    set_stage();
    set_offload();
    set_checkpointing();
    set_precision();
    check_state_dict();
    for (const auto& [key, value] : fsdp_.config) {
      const CompatName* known = compat_table("transformers").find("fsdp_config." + key);
      if (known->use == CompatUse::kNoEffect && !known->accepts(value))
        note(fmt::format("{} {}", key, printable(value, 80)), std::string(known->detail));
    }
    for (const auto& [reason, names] : notes_) {
      log_warning("{}: {} {} no effect: {}", where("fsdp_config"), fmt::join(names, ", "),
                  names.size() == 1 ? "has" : "have", reason);
    }
  }

 private:
  // "--fsdp", "run.yaml:7: fsdp", and the file that fsdp_config names.
  std::string where(const std::string& flag) const {
    if (flag == "fsdp_config" && !fsdp_.config_file.empty()) return fsdp_.config_file;
    const std::string origin = table_.origin(flag);
    return origin == kCommandLineOrigin ? "--" + flag : fmt::format("{}: {}", origin, flag);
  }
  std::string where_word(const std::string& word) const { return fmt::format("{} {}", where("fsdp"), word); }
  std::string where_key(const std::string& key) const {
    return fmt::format("{}: {} {}", where("fsdp_config"), key, fsdp_.config.at(key));
  }
  std::string value(const std::string& key) const {
    const auto found = fsdp_.config.find(key);
    return found == fsdp_.config.end() ? "" : found->second;
  }

  void note(const std::string& name, const std::string& reason) {
    const auto known =
        std::ranges::find(notes_, reason, &std::pair<std::string, std::vector<std::string>>::first);
    if (known != notes_.end()) {
      known->second.push_back(name);
    } else {
      notes_.push_back({reason, {name}});
    }
  }

  // Sets a flag that follows from `source`; one that was given must say the same.
  void set(const char* name, const std::string& to, const std::string& source) {
    const Flag& flag = *table_.find(name);
    const std::string given = fmt::format("{}", fmt::join(flag.get(), " "));
    if (table_.is_set(name) && !given.empty() && given != "auto") {
      if (given == to) return;
      fail(ExitCode::kBadConfig, "{} means {} {}, which contradicts {} {}: leave one of them out", source,
           name, to, name, given);
    }
    table_.set(flag, {to}, source);
    fsdp_.sets.insert(name);
  }

  // reshard_after_forward as a strategy; "" if it is not given.
  std::string resharding() const {
    const std::string reshard = value("reshard_after_forward"), version = value("version");
    const bool is_bool = reshard == "true" || reshard == "false";
    if (version == "2" && !reshard.empty() && !is_bool) {
      fail(ExitCode::kBadConfig, "{}: expected true or false beside version 2, as in accelerate",
           where_key("reshard_after_forward"));
    }
    if (version == "1" && is_bool) {
      fail(ExitCode::kBadConfig,
           "{}: expected a strategy such as full_shard beside version 1, as in accelerate",
           where_key("reshard_after_forward"));
    }
    return reshard == "true" ? "full_shard" : reshard == "false" ? "shard_grad_op" : reshard;
  }

  // Transformers' order: what fsdp_config says counts, then the words of fsdp.
  std::string decided_strategy() {
    const std::string reshard = resharding(), named = value("sharding_strategy"), word = fsdp_.strategy;
    if (value("version") == "2") {
      for (const auto& [strategy, from] :
           {std::pair{word, where_word(word)},
            std::pair{named, where("fsdp_config") + ": sharding_strategy " + named}}) {
        if (!needs_version_1(strategy)) continue;
        fail(ExitCode::kBadConfig, "{} needs version 1 in fsdp_config, as in Transformers, found 2", from);
      }
    }
    if (!named.empty()) {
      const std::string other = !reshard.empty() ? reshard : word;
      if (!other.empty() && other != named) {
        fail(ExitCode::kBadConfig, "{} contradicts {}: leave one of them out", where_key("sharding_strategy"),
             reshard.empty() ? where_word(word) : where_key("reshard_after_forward"));
      }
    }
    if (!reshard.empty() && !word.empty() && reshard != word) {
      log_warning("{} has no effect: {} decides, as in Transformers", where_word(word),
                  where_key("reshard_after_forward"));
    }
    if (!reshard.empty()) {
      fsdp_.source = where_key("reshard_after_forward");
      return reshard;
    }
    fsdp_.source = !word.empty()    ? where_word(word)
                   : !named.empty() ? where_key("sharding_strategy")
                                    : where_word(fsdp_.words);
    return !word.empty() ? word : !named.empty() ? named : "full_shard";
  }

  void set_stage() {
    const std::string strategy = decided_strategy();
    set("zero_stage", stage_of_strategy(strategy), fsdp_.source);
    if (strategy == "hybrid_shard") set("gather_schedule", "per_step", fsdp_.source);
    if (!strategy.starts_with("hybrid_shard")) return;
    log_info(
        "{}: every node has all weights, as in PyTorch; gradients and optimizer state are divided among the "
        "ranks "
        "of all nodes, where PyTorch keeps a copy on each: less memory, and the same bytes between nodes",
        fsdp_.source);
  }

  void set_offload() {
    const std::string of_fsdp = value("cpu_offload"), of_accelerate = value("offload_params");
    if (!of_fsdp.empty() && !of_accelerate.empty() && of_fsdp != of_accelerate) {
      fail(ExitCode::kBadConfig, "{} contradicts {}: leave one of them out", where_key("cpu_offload"),
           where_key("offload_params"));
    }
    const char* key = of_fsdp.empty() ? "offload_params" : "cpu_offload";
    const std::string decided = value(key);
    if (decided == "false" && fsdp_.offloads) {
      log_warning("{} has no effect: {} decides, as in Transformers", where_word("offload"), where_key(key));
    }
    if (decided == "false" || (decided.empty() && !fsdp_.offloads)) return;
    const std::string source = decided.empty() ? where_word("offload") : where_key(key);
    if (spec_.machine.device != DeviceKind::kCpu) return set("offload_param_device", "cpu", source);
    log_warning(
        "{} has no effect: weights, gradients and optimizer state are in the memory of the processors anyway",
        source);
  }

  void set_checkpointing() {
    const char* key = "activation_checkpointing";
    const bool is_on = value(key) == "true";
    if (value("activation_checkpointing_offload") == "true") check_offloaded_inputs(is_on);
    if (!is_on) return;
    if (spec_.placement.gradient_checkpointing) {
      fail(ExitCode::kBadConfig,
           "{} and gradient_checkpointing true are the same, and refused together by Transformers: leave one "
           "of them out",
           where_key(key));
    }
    table_.set(*table_.find("gradient_checkpointing"), {"true"}, where_key(key));
    fsdp_.sets.insert("gradient_checkpointing");
  }

  void check_offloaded_inputs(bool has_checkpoints) {
    const std::string source = where_key("activation_checkpointing_offload");
    if (!has_checkpoints)
      fail(ExitCode::kBadConfig, "{} needs activation_checkpointing true, as in accelerate", source);
    if (value("version") == "1")
      fail(ExitCode::kBadConfig, "{} needs version 2, as in accelerate, found 1", source);
    if (spec_.machine.device != DeviceKind::kCpu)
      fail(ExitCode::kBadConfig, "{} is not supported with device {}", source, spec_.machine.device);
    note("activation_checkpointing_offload true",
         "the inputs of layers are in the memory of the processors anyway");
  }

  void set_precision() {
    const std::string policy = value("mixed_precision_policy");
    if (policy.empty()) return;
    const bool is_bf16 = spec_.precision.bf16.value_or(spec_.precision.dtype == DType::kBF16);
    const std::string params = policy.substr(0, policy.find(' ')),
                      reductions = policy.substr(params.size() + 1);
    if ((params == "bf16") != is_bf16) {
      fail(ExitCode::kBadConfig, "{}: mixed_precision_policy: {} contradicts dtype {}: give dtype {}",
           where("fsdp_config"), params, is_bf16 ? "bfloat16" : "float32", is_bf16 ? "float32" : "bfloat16");
    }
    spec_.sharding.communication_dtype = reductions == "bf16" ? DType::kBF16 : DType::kF32;
  }

  void check_state_dict() const {
    if (value("version") != "2" || value("state_dict_type") != "LOCAL_STATE_DICT") return;
    fail(ExitCode::kBadConfig,
         "{}: expected FULL_STATE_DICT or SHARDED_STATE_DICT beside version 2, as in accelerate",
         where_key("state_dict_type"));
  }

  FlagTable& table_;
  RunSettings& spec_;
  FsdpArguments& fsdp_;
  std::vector<std::pair<std::string, std::vector<std::string>>> notes_;  // reason, names
};

}  // namespace

void declare_fsdp_flags(FlagTable* table, RunSettings* spec) {
  FsdpArguments& fsdp = spec->sources.fsdp;
  // training_args.json has what these become.
  Flag& words = run_fields().complete(table->add_parsed_list(
      "fsdp", [&fsdp](const std::vector<std::string>& values) { read_fsdp_words(values, &fsdp); },
      [] { return std::vector<std::string>(); }, run_fields().help_of("fsdp")));
  words.value_if_alone = "true";
  words.get = nullptr;
  run_fields()
      .complete(table->add_parsed(
          "fsdp_config", [&fsdp](const std::string& text) { read_fsdp_config(text, &fsdp); },
          [] { return std::string(); }, run_fields().help_of("fsdp_config")))
      .get = nullptr;
  const char* old_name = "fsdp_transformer_layer_cls_to_wrap";  // before Transformers 5
  Flag& classes = table->add_parsed(
      old_name, [&fsdp](const std::string& text) { add_layer_classes(text, &fsdp); },
      [] { return std::string(); }, "The key of fsdp_config.");
  classes.get = nullptr;
  classes.listed = false;
}

void apply_fsdp(FlagTable* table, RunSettings* spec) { FsdpApplication(table, spec).run(); }

void check_wrapped_classes(const FsdpArguments& fsdp, const ModelConfig& config) {
  if (fsdp.layer_classes.empty()) return;
  const FamilyInfo& family = family_info(config.family);
  std::vector<std::string> others;
  for (const std::string& name : fsdp.layer_classes) {
    if (name == family.layer_class) continue;
    if (std::ranges::find(family.other_classes, name) == family.other_classes.end()) {
      fail(ExitCode::kBadConfig,
           "fsdp_config: transformer_layer_cls_to_wrap: the model has no module of the class '{}'; its "
           "layers are "
           "of the class {}",
           printable(name), family.layer_class);
    }
    others.push_back(name);
  }
  if (others.empty()) return;
  log_warning("fsdp_config: transformer_layer_cls_to_wrap {} has no effect: weights are gathered by {}",
              fmt::join(others, ", "), family.layer_class);
}

}  // namespace tessera
