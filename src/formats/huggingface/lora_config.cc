#include "formats/huggingface/lora_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "formats/json.h"
#include "io/file.h"

namespace tessera {
namespace {

constexpr int64_t kMaxAdapterConfigBytes = int64_t{1} << 20;
constexpr int64_t kMaxRank = 1 << 14;
constexpr double kMaxAlpha = 1e6;

// Fields that would change what is computed, with the values that do not.
struct NeutralField {
  const char* name;
  const char* neutral;  // JSON, beside null
};
constexpr NeutralField kNeutralFields[] = {
    {"alora_invocation_tokens", "[]"},
    {"arrow_config", "{}"},
    {"bias", "\"none\""},
    {"exclude_modules", "[]"},
    {"fan_in_fan_out", "false"},
    {"kasa_config", "null"},
    {"layer_replication", "[]"},
    {"layers_to_transform", "[]"},
    {"lora_bias", "false"},
    {"megatron_config", "{}"},
    {"modules_to_save", "[]"},
    {"monteclora_config", "null"},
    {"target_parameters", "[]"},
    {"trainable_token_indices", "[]"},
    {"use_bdlora", "null"},
    {"use_dora", "false"},
    {"use_qalora", "false"},
};

// These initialisations leave another base model behind than the one that is named.
constexpr std::array kChangedBase = {"corda", "loftq", "lora_ga", "olora", "pissa"};

void refuse_unsupported(const JsonNode& fields) {
  const std::string& type = fields["peft_type"].string();
  if (type != "LORA") {
    fail(ExitCode::kBadConfig, "{}: field 'peft_type': '{}' is not supported, expected 'LORA'",
         fields.origin(), printable(type));
  }
  for (const NeutralField& field : kNeutralFields) {
    const Json& value = fields[field.name].json();
    if (value.is_null() || value == Json::parse(field.neutral)) continue;
    fail(ExitCode::kBadConfig, "{}: field '{}': {} is not supported, expected {}", fields.origin(),
         field.name, printable(value.dump()), field.neutral);
  }
  const JsonNode init = fields["init_lora_weights"];
  if (!init.is_string()) return;
  for (const char* name : kChangedBase) {
    if (lower_case(init.string()).starts_with(name)) {
      fail(ExitCode::kBadConfig,
           "{}: field 'init_lora_weights': '{}' changes the base model: convert the adapter with PEFT's "
           "path_initial_model_for_weight_conversion",
           fields.origin(), printable(init.string()));
    }
  }
}

bool is_module_name(std::string_view name) {
  return !name.empty() && std::ranges::all_of(name, [](char c) {
    return c == '.' || c == '_' || ('0' <= c && c <= '9') || ('a' <= c && c <= 'z') || ('A' <= c && c <= 'Z');
  });
}

std::vector<std::string> read_targets(const JsonNode& targets) {
  if (targets.is_string() && targets.string() == "all-linear") return lora_module_names();
  if (!targets.is_list() || targets.json().empty()) {
    targets.expected("a list of module names, or \"all-linear\" (regular expressions are not supported)");
  }
  std::vector<std::string> names;
  for (const JsonNode& target : targets.list()) {
    if (!is_module_name(target.string())) target.expected("the name of a module");
    names.push_back(target.string());
  }
  return names;
}

template <typename Value, typename Read>
std::map<std::string, Value> read_pattern(const JsonNode& pattern, const Read& read) {
  std::map<std::string, Value> values;
  if (pattern.is_null()) return values;
  for (const auto& [name, value] : pattern.object().items()) {
    if (!is_module_name(std::string_view(name).substr(name.starts_with('^') ? 1 : 0))) {
      pattern.expected("names of modules (regular expressions are not supported)");
    }
    values.emplace(name, read(pattern[name]));
  }
  return values;
}

double read_alpha(const JsonNode& node) {
  const double alpha = node.number();
  if (!(alpha > 0 && alpha <= kMaxAlpha)) node.expected("a number above 0, at most 1000000");
  return alpha;
}

bool is_end_of(std::string_view end, std::string_view module) {
  return module.ends_with(end) &&
         (module.size() == end.size() || module[module.size() - end.size() - 1] == '.');
}

// The value of the first pattern that fits the module. A dot in it stands for itself.
template <typename Value>
Value value_for(std::string_view module, const std::map<std::string, Value>& patterns, Value otherwise) {
  for (const auto& [name, value] : patterns) {
    const bool fits =
        name.starts_with('^') ? module == std::string_view(name).substr(1) : is_end_of(name, module);
    if (fits) return value;
  }
  return otherwise;
}

// As in hub/repo_name.h, a text that exists as a path is a path.
bool may_be_on_hub(std::string_view name) {
  std::error_code error;
  return std::ranges::count(name, '/') == 1 && !name.starts_with('/') && !name.starts_with('.') &&
         !std::filesystem::exists(name, error);
}

// base_model_name_or_path holds "org/name@revision"; for PEFT these are two fields.
std::string join_revision(const std::string& base, const std::string& revision) {
  const bool is_other = !revision.empty() && revision != "main" && may_be_on_hub(base);
  return is_other ? fmt::format("{}@{}", base, revision) : base;
}

std::pair<std::string, std::optional<std::string>> split_revision(const std::string& base) {
  const size_t at = base.find('@');
  std::error_code error;
  if (at == base.npos || !may_be_on_hub(base.substr(0, at)) || std::filesystem::exists(base, error))
    return {base, std::nullopt};
  return {base.substr(0, at), base.substr(at + 1)};
}

}  // namespace

const std::vector<std::string>& lora_module_names() {
  static const std::vector<std::string> names = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                                 "gate_proj", "up_proj", "down_proj"};
  return names;
}

std::optional<LoraModule> LoraConfig::adapter_of(std::string_view module) const {
  const auto fits = [&](const std::string& target) { return is_end_of(target, module); };
  if (std::ranges::none_of(target_modules, fits)) return std::nullopt;
  const int64_t rank = value_for(module, rank_pattern, r);
  const double alpha = value_for(module, alpha_pattern, lora_alpha);
  const auto width = static_cast<double>(rank);
  return LoraModule{rank, alpha / (use_rslora ? std::sqrt(width) : width)};
}

LoraConfig parse_lora_config(std::string_view json, const std::string& origin) {
  const Json document = parse_json(json, origin);
  const JsonNode fields(document, origin);
  fields.object();
  refuse_unsupported(fields);
  const auto read_rank = [](const JsonNode& node) { return node.integer(1, kMaxRank); };
  LoraConfig config;
  config.base_model_name_or_path =
      join_revision(fields["base_model_name_or_path"].string_or(""), fields["revision"].string_or(""));
  if (!fields["r"].is_null()) config.r = read_rank(fields["r"]);
  if (!fields["lora_alpha"].is_null()) config.lora_alpha = read_alpha(fields["lora_alpha"]);
  const JsonNode dropout = fields["lora_dropout"];
  config.lora_dropout = dropout.number_or(0);
  if (!(config.lora_dropout >= 0 && config.lora_dropout < 1)) dropout.expected("a number from 0 to below 1");
  config.use_rslora = fields["use_rslora"].boolean_or(false);
  config.target_modules = read_targets(fields["target_modules"]);
  config.rank_pattern = read_pattern<int64_t>(fields["rank_pattern"], read_rank);
  config.alpha_pattern = read_pattern<double>(fields["alpha_pattern"], read_alpha);
  return config;
}

LoraConfig read_lora_config(const std::filesystem::path& folder) {
  const std::filesystem::path path = folder / kAdapterConfigName;
  return parse_lora_config(read_text_file(path, kMaxAdapterConfigBytes), path.native());
}

std::string write_lora_config(const LoraConfig& config) {
  const auto number = [](double value) {
    return value == std::floor(value) ? nlohmann::ordered_json(static_cast<int64_t>(value))
                                      : nlohmann::ordered_json(value);
  };
  const auto [base, revision] = split_revision(config.base_model_name_or_path);
  nlohmann::ordered_json json = {
      {"alpha_pattern", nlohmann::ordered_json::object()},
      {"base_model_name_or_path", base},
      {"bias", "none"},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"lora_alpha", number(config.lora_alpha)},
      {"lora_dropout", config.lora_dropout},
      {"modules_to_save", nullptr},
      {"peft_type", "LORA"},
      {"r", config.r},
      {"rank_pattern", config.rank_pattern},
      {"revision", revision ? nlohmann::ordered_json(*revision) : nlohmann::ordered_json()},
      {"target_modules", config.target_modules},
      {"task_type", "CAUSAL_LM"},
      {"use_dora", false},
      {"use_rslora", config.use_rslora},
  };
  for (const auto& [name, alpha] : config.alpha_pattern) json["alpha_pattern"][name] = number(alpha);
  return json.dump(2) + "\n";
}

std::string lora_a_name(std::string_view module) {
  return fmt::format("base_model.model.{}.lora_A.weight", module);
}

std::string lora_b_name(std::string_view module) {
  return fmt::format("base_model.model.{}.lora_B.weight", module);
}

}  // namespace tessera
