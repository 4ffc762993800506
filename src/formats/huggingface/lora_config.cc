#include "formats/huggingface/lora_config.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "base/embedded_text.h"
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/json.h"
#include "io/file.h"

namespace tessera {

std::span<const EmbeddedText> config_texts();  // formats/huggingface/*.tsv

namespace {

constexpr int64_t kMaxAdapterConfigBytes = int64_t{1} << 20;
constexpr int64_t kMaxRank = 1 << 14;
constexpr double kMaxAlpha = 1e6;

// These initialisations change the base model, so the result does not fit the base that the file names.
constexpr std::array kChangedBase = {"corda", "loftq", "lora_ga", "olora", "pissa"};
// These do not.
constexpr std::array kOtherInitialisations = {"eva", "gaussian", "mica", "orthogonal"};

bool is_nothing(const Json& value) {
  return value.is_null() || value == Json(false) || (value.is_structured() && value.empty());
}

void check_field(const JsonNode& fields, const std::string& name, const Json& value) {
  static const auto table = read_cells("lora_fields", text_named(config_texts(), "lora_fields"), 4);
  const auto line = std::ranges::find_if(table, [&](const auto& cells) { return cells[0] == name; });
  if (line == table.end()) {
    if (is_nothing(value)) return;
    log_warning_once(fmt::format("{}: field '{}' has no effect: PEFT 0.21 does not know it and ignores it",
                                 fields.origin(), printable(name)));
    return;
  }
  const std::string_view use = (*line)[1], neutral = (*line)[2], note = (*line)[3];
  if (value.is_null() || value == Json::parse(neutral)) return;
  if (use == "refused") {
    fail(ExitCode::kBadConfig, "{}: field '{}': {} is not supported, expected {}", fields.origin(), name,
         printable(value.dump()), neutral);
  }
  if (use == "initialised" || use == "ignored") {
    log_warning_once(fmt::format("{}: field '{}' has no effect: {}", fields.origin(), name,
                                 use == "ignored" ? note : "it says how the adapter was initialised"));
  }
}

void check_initialisation(const JsonNode& init) {
  if (!init.is_string()) {
    init.boolean_or(true);
    return;
  }
  const std::string name = lower_case(init.string());
  for (const char* other : kChangedBase) {
    if (!name.starts_with(other)) continue;
    fail(ExitCode::kBadConfig,
         "{}: field 'init_lora_weights': '{}' changes the base model: convert the adapter with PEFT's "
         "path_initial_model_for_weight_conversion",
         init.origin(), printable(init.string()));
  }
  if (std::ranges::find(kOtherInitialisations, name) == kOtherInitialisations.end()) {
    init.expected("true, false or an initialisation of PEFT 0.21");
  }
}

std::string other_training_of(const JsonNode& fields) {
  const JsonNode init = fields["init_lora_weights"];
  if (init.is_string() && lower_case(init.string()) == "mica") {
    return "init_lora_weights mica trains A alone";
  }
  return fields["velora_config"].is_null() ? "" : "velora_config compresses inputs for the backward pass";
}

void refuse_unsupported(const JsonNode& fields) {
  const std::string& type = fields["peft_type"].string();
  if (type != "LORA") {
    fail(ExitCode::kBadConfig, "{}: field 'peft_type': '{}' is not supported, expected 'LORA'",
         fields.origin(), printable(type));
  }
  for (const auto& [name, value] : fields.object().items()) check_field(fields, name, value);
  check_initialisation(fields["init_lora_weights"]);
}

std::vector<std::string> read_names(const JsonNode& names, const char* expected) {
  std::vector<std::string> result;
  for (const JsonNode& name : names.list()) {
    if (name.string().empty()) name.expected(expected);
    result.push_back(name.string());
  }
  return result;
}

std::string read_expression(const JsonNode& text) {
  check_module_expression(text.string(), fmt::format("{}: field '{}'", text.origin(), text.path()));
  return text.string();
}

ModuleSelection read_targets(const JsonNode& targets) {
  if (targets.is_string() && !targets.string().empty()) {
    if (lower_case(targets.string()) == "all-linear") return lora_module_names();
    return ModuleSelection::expression(read_expression(targets));
  }
  if (!targets.is_list() || targets.json().empty()) {
    targets.expected("a list of module names, a regular expression or \"all-linear\"");
  }
  return read_names(targets, "the name of a module");
}

ModuleSelection read_excluded(const JsonNode& excluded) {
  if (excluded.is_null()) return {};
  if (!excluded.is_string()) return read_names(excluded, "the name of a module");
  if (excluded.string().empty()) return {};
  return ModuleSelection::expression(read_expression(excluded));
}

std::vector<int64_t> read_layers(const JsonNode& layers) {
  if (layers.is_null()) return {};
  if (!layers.is_list()) return {layers.integer(0)};
  std::vector<int64_t> numbers;
  for (const JsonNode& layer : layers.list()) numbers.push_back(layer.integer(0));
  return numbers;
}

std::vector<std::string> read_layers_pattern(const JsonNode& pattern) {
  if (pattern.is_null() || (pattern.is_string() && pattern.string().empty())) return {};
  if (pattern.is_string()) return {read_expression(pattern)};
  std::vector<std::string> patterns;
  for (const JsonNode& element : pattern.list()) patterns.push_back(read_expression(element));
  return patterns;
}

// PEFT's LoraConfig checks the same.
void check_layers(const LoraConfig& config, const JsonNode& fields) {
  const char* field = !config.layers_to_transform.empty() ? "layers_to_transform" : "layers_pattern";
  if (config.target_modules.is_expression() &&
      !(config.layers_to_transform.empty() && config.layers_pattern.empty())) {
    fail(ExitCode::kBadConfig, "{}: field '{}' needs target_modules as a list, found the expression {}",
         fields.origin(), field, printable(config.target_modules.json().dump()));
  }
  if (config.layers_to_transform.empty() && !config.layers_pattern.empty()) {
    fail(ExitCode::kBadConfig, "{}: field 'layers_pattern' needs layers_to_transform", fields.origin());
  }
}

// `ordered` has the fields in the order of the file, which decides between keys that fit the same module.
template <typename Value, typename Read>
std::vector<std::pair<std::string, Value>> read_pattern(const JsonNode& fields,
                                                        const nlohmann::ordered_json& ordered,
                                                        const char* field, const Read& read) {
  const JsonNode pattern = fields[field];
  std::vector<std::pair<std::string, Value>> values;
  if (pattern.is_null()) return values;
  pattern.object();
  for (const auto& item : ordered.at(field).items()) {
    const std::string& key = item.key();
    check_module_expression(key, fmt::format("{}: field '{}'", fields.origin(), field));
    values.emplace_back(key, read(pattern[key]));
  }
  return values;
}

// "" for the models of other tasks, which PEFT does not write for the base model alone.
std::string read_task_type(const JsonNode& type) {
  const std::string word = type.string_or("");
  if (!word.empty() && word != "CAUSAL_LM" && word != "SEQ_2_SEQ_LM")
    fail(ExitCode::kBadConfig,
         "{}: field 'task_type': '{}' is not supported, expected CAUSAL_LM or SEQ_2_SEQ_LM", type.origin(),
         printable(word));
  return word;
}

double read_alpha(const JsonNode& node) {
  const double alpha = node.number();
  if (!(alpha > 0 && alpha <= kMaxAlpha)) node.expected("a number above 0, at most 1000000");
  return alpha;
}

template <typename Value>
Value value_for(std::string_view module, const std::vector<std::pair<std::string, Value>>& patterns,
                Value otherwise) {
  for (const auto& [key, value] : patterns) {
    if (is_pattern_key_of(key, module)) return value;
  }
  return otherwise;
}

// Text that exists as a path is a path, as in hub/repo_name.h.
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
  if (exclude_modules.contains(module) || !target_modules.contains(module)) return std::nullopt;
  if (!layers_to_transform.empty() && !target_modules.names_whole(module)) {
    const std::optional<int64_t> layer = layer_of(module, layers_pattern);
    if (!layer || std::ranges::find(layers_to_transform, *layer) == layers_to_transform.end())
      return std::nullopt;
  }
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
  const auto ordered = nlohmann::ordered_json::parse(json);
  const auto read_rank = [](const JsonNode& node) { return node.integer(1, kMaxRank); };
  LoraConfig config;
  config.base_model_name_or_path =
      join_revision(fields["base_model_name_or_path"].string_or(""), fields["revision"].string_or(""));
  if (!fields["r"].is_null()) config.r = read_rank(fields["r"]);
  if (!fields["lora_alpha"].is_null()) config.lora_alpha = read_alpha(fields["lora_alpha"]);
  const JsonNode dropout = fields["lora_dropout"];
  config.lora_dropout = dropout.number_or(0);
  if (!(config.lora_dropout >= 0 && config.lora_dropout < 1)) dropout.expected("a number from 0 to below 1");
  config.task_type = read_task_type(fields["task_type"]);
  config.use_rslora = fields["use_rslora"].boolean_or(false);
  config.target_modules = read_targets(fields["target_modules"]);
  config.exclude_modules = read_excluded(fields["exclude_modules"]);
  config.layers_to_transform = read_layers(fields["layers_to_transform"]);
  config.layers_pattern = read_layers_pattern(fields["layers_pattern"]);
  check_layers(config, fields);
  config.rank_pattern = read_pattern<int64_t>(fields, ordered, "rank_pattern", read_rank);
  config.alpha_pattern = read_pattern<double>(fields, ordered, "alpha_pattern", read_alpha);
  config.other_training = other_training_of(fields);
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
  const auto list_or_null = [](const auto& list) {
    return list.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(list);
  };
  const auto [base, revision] = split_revision(config.base_model_name_or_path);
  nlohmann::ordered_json json = {
      {"alpha_pattern", nlohmann::ordered_json::object()},
      {"base_model_name_or_path", base},
      {"bias", "none"},
      {"exclude_modules", config.exclude_modules.json()},
      {"fan_in_fan_out", false},
      {"inference_mode", true},
      {"init_lora_weights", true},
      {"layers_pattern", list_or_null(config.layers_pattern)},
      {"layers_to_transform", list_or_null(config.layers_to_transform)},
      {"lora_alpha", number(config.lora_alpha)},
      {"lora_dropout", config.lora_dropout},
      {"modules_to_save", nullptr},
      {"peft_type", "LORA"},
      {"r", config.r},
      {"rank_pattern", nlohmann::ordered_json::object()},
      {"revision", revision ? nlohmann::ordered_json(*revision) : nlohmann::ordered_json()},
      {"target_modules", config.target_modules.json()},
      {"task_type",
       config.task_type.empty() ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(config.task_type)},
      {"use_dora", false},
      {"use_rslora", config.use_rslora},
  };
  for (const auto& [key, rank] : config.rank_pattern) json["rank_pattern"][key] = rank;
  for (const auto& [key, alpha] : config.alpha_pattern) json["alpha_pattern"][key] = number(alpha);
  return json.dump(2) + "\n";
}

std::string lora_a_name(std::string_view module) {
  return fmt::format("base_model.model.{}.lora_A.weight", module);
}

std::string lora_b_name(std::string_view module) {
  return fmt::format("base_model.model.{}.lora_B.weight", module);
}

}  // namespace tessera
