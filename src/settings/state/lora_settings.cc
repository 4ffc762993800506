#include "settings/state/lora_settings.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "settings/flag_limits.h"

namespace tessera {
namespace {

// Settings that an adapter's own configuration decides.
constexpr std::array kAdapterFlags = {
    "lora_rank",    "lora_alpha",    "lora_dropout",    "lora_target",         "use_rslora",
    "rank_pattern", "alpha_pattern", "exclude_modules", "layers_to_transform", "layers_pattern"};

// A list of names, which LLaMA-Factory separates by commas, or a single regular expression.
nlohmann::ordered_json modules(const std::vector<std::string>& values) {
  const bool is_list = values.size() != 1 || std::ranges::count(values[0], ',') > 0;
  std::vector<std::string> names;
  for (const std::string& value : values) {
    std::istringstream list(value);
    for (std::string name; std::getline(list, name, ',');) {
      if (name == "all" || name == "all-linear") return "all-linear";
      names.push_back(name);
    }
  }
  if (values.size() == 1 && looks_like_expression(values[0]) &&
      (!is_list || std::ranges::any_of(names, looks_like_expression))) {
    return values[0];
  }
  return names;
}

nlohmann::ordered_json layers(const std::vector<std::string>& values) {
  nlohmann::ordered_json numbers = nlohmann::ordered_json::array();
  for (const std::string& value : values) {
    std::istringstream list(value);
    for (std::string text; std::getline(list, text, ',');) {
      const std::optional<int64_t> layer = parse_integer(text);
      if (!layer || *layer < 0) {
        fail(ExitCode::kBadConfig, "layers_to_transform: expected numbers of layers from 0, found '{}'",
             printable(text));
      }
      numbers.push_back(*layer);
    }
  }
  return numbers;
}

nlohmann::ordered_json pattern(const std::string& flag, const std::string& text) {
  if (text.empty()) return nullptr;
  auto object = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (object.is_object()) return object;
  fail(ExitCode::kBadConfig, R"({}: expected a JSON object as {{"down_proj": 16}}, found '{}')", flag,
       printable(text));
}

}  // namespace

void declare_lora_flags(FlagTable* table, RunSpec* args) {
  table->begin_section("LoRA");
  Flag& type =
      table->add_choice("finetuning_type", &args->lora.finetuning_type,
                        "With lora, low-rank adapters are trained beside the weights of the layers' linear "
                        "modules, which stay as they are; output_dir becomes a folder that PEFT reads.");
  type.aliases = {"peft", "peft_type"};
  type.set = [set = type.set](const std::vector<std::string>& values) {
    set(values == std::vector<std::string>{"LORA"} ? std::vector<std::string>{"lora"}
                                                   : values);  // PEFT's spelling
  };
  Flag& rank = table->add("lora_rank", &args->lora.rank, "Rank r of the adapters.");
  rank.aliases = {"lora_r"};
  limit(rank, at_least(1));
  limit(table->add("lora_alpha", &args->lora.alpha,
                   "Adapters are scaled by lora_alpha / lora_rank. Defaults to twice the rank, as in "
                   "LLaMA-Factory."),
        above(0));
  limit(table->add("lora_dropout", &args->lora.dropout,
                   "Probability of dropping an input of an adapter during training."),
        {0, 1, false, true});
  Flag& target =
      table->add("lora_target", &args->lora.targets,
                 "Modules that get adapters, by name or end of it (q_proj, "
                 "layers.0.mlp.down_proj), or all: the linear modules of all layers. A single value "
                 "with other characters than names have is a regular expression for whole names, as "
                 "in PEFT.");
  target.aliases = {"lora_target_modules", "target_modules"};
  table->add("exclude_modules", &args->lora.exclude_modules,
             "Modules that get none, by name or end of it or as one regular expression.");
  table
      ->add("layers_to_transform", &args->lora.layers_to_transform,
            "Numbers of the layers that get adapters. Defaults to all.")
      .aliases = {"peft_layers_to_transform"};
  table
      ->add("layers_pattern", &args->lora.layers_pattern,
            "Name of the list of layers that layers_to_transform numbers (layers), or a regular expression.")
      .aliases = {"peft_layers_pattern"};
  table->add("use_rslora", &args->lora.use_rslora, "Scale by lora_alpha / sqrt(lora_rank) instead.")
      .aliases = {"lora_use_rslora", "peft_use_rslora"};
  table
      ->add("rank_pattern", &args->lora.rank_pattern,
            "Ranks of modules that differ from lora_rank, as JSON: {\"down_proj\": 16}. Keys are regular "
            "expressions for ends of names; the first that fits counts, as in PEFT.")
      .value_name = "JSON";
  table->add("alpha_pattern", &args->lora.alpha_pattern, "The same for lora_alpha.").value_name = "JSON";
  Flag& adapter = table->add(
      "adapter_name_or_path", &args->lora.adapter,
      "Folder with an adapter (adapter_config.json, adapter_model.safetensors) that training starts from.");
  adapter.aliases = {"lora_model_dir"};
  adapter.value_name = "DIR";
}

void check_lora_arguments(const FlagTable& table, const RunSpec& args) {
  const bool is_lora = args.lora.finetuning_type == FinetuningType::kLora;
  if (is_lora && args.sharding.load_once == LoadOnce::kPerCluster) {
    log_warning(
        "load_weights_once per_cluster: each node reads the weights beside which adapters are trained");
  }
  if (is_lora && args.placement.optimizer_in_backward) {
    fail(ExitCode::kBadConfig,
         "optimizer_in_backward contradicts finetuning_type lora: the gradients of adapters are small; leave "
         "it out");
  }
  if (is_lora && args.lora.adapter.empty()) return;
  if (!is_lora && !args.lora.adapter.empty()) {
    fail(ExitCode::kBadConfig, "adapter_name_or_path: needs finetuning_type lora, found {}",
         args.lora.finetuning_type);
  }
  const bool is_off = table.is_set("use_peft") && !args.sources.script.use_peft;
  for (const char* flag : kAdapterFlags) {
    if (!table.is_set(flag)) continue;
    if (!is_lora && is_off) {
      log_warning("{} has no effect: use_peft is false, so all weights are trained, as in TRL", flag);
      continue;
    }
    if (!is_lora) fail(ExitCode::kBadConfig, "{}: needs finetuning_type lora, found full", flag);
    fail(ExitCode::kBadConfig, "{}: {} of {} decides; leave it out", flag, kAdapterConfigName,
         args.lora.adapter);
  }
}

std::optional<LoraConfig> lora_config_of(const RunSpec& args) {
  if (args.lora.finetuning_type != FinetuningType::kLora) return std::nullopt;
  LoraConfig config;
  if (!args.lora.adapter.empty()) {
    config = read_lora_config(args.lora.adapter);
    if (!config.other_training.empty()) {
      fail(ExitCode::kBadConfig, "{}: {}: training from this adapter is not supported", args.lora.adapter,
           config.other_training);
    }
  } else {
    const nlohmann::ordered_json json = {
        {"peft_type", "LORA"},
        {"r", args.lora.rank},
        {"lora_alpha", args.lora.alpha.value_or(2 * static_cast<double>(args.lora.rank))},
        {"lora_dropout", args.lora.dropout},
        {"use_rslora", args.lora.use_rslora},
        {"target_modules", modules(args.lora.targets)},
        {"exclude_modules", modules(args.lora.exclude_modules)},
        {"layers_to_transform", layers(args.lora.layers_to_transform)},
        {"layers_pattern", args.lora.layers_pattern},
        {"rank_pattern", pattern("rank_pattern", args.lora.rank_pattern)},
        {"alpha_pattern", pattern("alpha_pattern", args.lora.alpha_pattern)}};
    try {
      config = parse_lora_config(json.dump(), "settings of LoRA");
    } catch (const Error& error) {
      fail(ExitCode::kBadConfig, "{}", error.what());
    }
  }
  const auto hub_name = args.model.hub_names.find("model");
  config.base_model_name_or_path =
      hub_name == args.model.hub_names.end() ? args.model.folder : hub_name->second;
  return config;
}

}  // namespace tessera
