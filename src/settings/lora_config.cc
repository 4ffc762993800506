#include <algorithm>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/error.h"
#include "base/text.h"
#include "settings/derived.h"

namespace tessera {
namespace {

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

nlohmann::ordered_json parse_pattern(const char* name, const std::string& text) {
  if (text.empty()) return nlohmann::ordered_json::object();
  auto object = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (object.is_object()) return object;
  fail(ExitCode::kBadConfig, R"({}: expected a JSON object as {{"down_proj": 16}}, found '{}')", name,
       printable(text));
}

template <typename Value>
nlohmann::ordered_json pattern_json(const std::vector<std::pair<std::string, Value>>& pattern) {
  auto object = nlohmann::ordered_json::object();
  for (const auto& [key, value] : pattern) object[key] = value;
  return object;
}

// Errors in settings are contradictions between them, not bad data.
LoraConfig config_of(const nlohmann::ordered_json& fields) {
  try {
    return parse_lora_config(fields.dump(), "settings of LoRA");
  } catch (const Error& error) {
    fail(ExitCode::kBadConfig, "{}", error.what());
  }
}

LoraConfig config_with_pattern(const char* name, const std::string& text) {
  return config_of(
      {{"peft_type", "LORA"}, {"target_modules", "all-linear"}, {name, parse_pattern(name, text)}});
}

}  // namespace

std::vector<std::pair<std::string, int64_t>> parse_rank_pattern(const std::string& text) {
  return config_with_pattern("rank_pattern", text).rank_pattern;
}

std::vector<std::pair<std::string, double>> parse_alpha_pattern(const std::string& text) {
  return config_with_pattern("alpha_pattern", text).alpha_pattern;
}

std::optional<LoraConfig> lora_config_of(const LoraSpec& lora, const ModelSource& model,
                                         const ModelConfig& base) {
  if (lora.finetuning_type != FinetuningType::kLora) return std::nullopt;
  LoraConfig config;
  if (!lora.adapter.empty()) {
    config = read_lora_config(lora.adapter);
    if (!config.other_training.empty()) {
      fail(ExitCode::kBadConfig, "{}: {}: training from this adapter is not supported", lora.adapter,
           config.other_training);
    }
  } else {
    config = config_of({{"peft_type", "LORA"},
                        {"r", lora.rank},
                        {"lora_alpha", lora.alpha.value_or(2 * static_cast<double>(lora.rank))},
                        {"lora_dropout", lora.dropout},
                        {"use_rslora", lora.use_rslora},
                        {"target_modules", modules(lora.targets)},
                        {"exclude_modules", modules(lora.exclude_modules)},
                        {"layers_to_transform", layers(lora.layers_to_transform)},
                        {"layers_pattern", lora.layers_pattern},
                        {"rank_pattern", pattern_json(lora.rank_pattern)},
                        {"alpha_pattern", pattern_json(lora.alpha_pattern)}});
  }
  if (lora.adapter.empty())
    config.task_type = base.encoder_decoder ? "SEQ_2_SEQ_LM" : base.encoder ? "" : "CAUSAL_LM";
  if (config.target_modules.names() == lora_module_names()) config.target_modules = lora_module_names(base);
  const auto hub_name = model.hub_names.find("model");
  config.base_model_name_or_path = hub_name == model.hub_names.end() ? model.folder : hub_name->second;
  return config;
}

}  // namespace tessera
