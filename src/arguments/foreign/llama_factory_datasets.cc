#include "arguments/foreign/llama_factory_datasets.h"

#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json_value.h"
#include "base/text.h"
#include "formats/json.h"
#include "io/file.h"

namespace tessera {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class LlamaFactoryDatasets {
 public:
  explicit LlamaFactoryDatasets(ForeignSettings* settings) : settings_(*settings) {}

  void run() {
    translate_template();
    translate_sources();
  }

 private:
  void translate_template() {
    const std::optional<ConfigSetting> taken = settings_.take("template");
    if (!taken) return;
    is_llama_factory_ = true;
    const std::string name = taken->value.is_string() ? taken->value.get<std::string>() : taken->value.dump();
    if (name != "llama3" && name != "chatml") {
      settings_.fail_in(
          taken->line,
          "template: {} is not built in: leave it out to use the model's own chat template, or set "
          "chat_template "
          "to a file, chatml or llama3",
          printable(name));
    }
    settings_.add("chat_template", name, taken->line);
  }

  void translate_sources() {
    const std::optional<ConfigSetting> folder = settings_.take("dataset_dir");
    const std::optional<ConfigSetting> probabilities = settings_.take("interleave_probs");
    const std::optional<ConfigSetting> strategy = settings_.take("mix_strategy");
    if (strategy && strategy->value != "concat" && strategy->value != "interleave_under") {
      settings_.fail_in(strategy->line, "mix_strategy: expected concat or interleave_under, found {}",
                        found_text(strategy->value));
    }
    if (folder && !folder->value.is_string())
      settings_.fail_in(folder->line, "dataset_dir: expected a folder, found {}", found_text(folder->value));
    if (!folder && !is_llama_factory_) return;
    const fs::path dir = folder ? folder->value.get<std::string>() : "data";
    const std::vector<double> weights =
        probabilities ? settings_.numbers_of(*probabilities) : std::vector<double>();
    for (const char* flag : {"dataset", "eval_dataset"}) {
      const ConfigSetting* setting = settings_.find(flag);
      if (setting == nullptr || !setting->value.is_string()) continue;
      const ConfigSetting taken = *settings_.take(flag);
      settings_.set_sources(
          flag,
          llama_factory_sources(dir, taken,
                                std::string_view(flag) == "dataset" ? weights : std::vector<double>()),
          taken.line);
    }
  }

  ForeignSources llama_factory_sources(const fs::path& dir, const ConfigSetting& setting,
                                       const std::vector<double>& weights) {
    const fs::path path = dir / "dataset_info.json";
    const std::string origin = path.string();
    const json info = parse_json(read_text_file(path), origin);
    const std::vector<std::string> names = split_list(setting.value.get<std::string>());
    if (!weights.empty() && weights.size() != names.size())
      settings_.fail_in(setting.line,
                        "interleave_probs: expected one number for each of {} datasets, found {}",
                        names.size(), weights.size());
    ForeignSources sources;
    for (size_t i = 0; i < names.size(); ++i) {
      if (!info.is_object() || !info.contains(names[i])) {
        settings_.fail_in(setting.line, "{}: '{}' is not described in {}", setting.name, printable(names[i]),
                          origin);
      }
      const JsonNode entry = JsonNode(info, origin)[names[i]];
      const std::string source = llama_factory_path(dir, entry);
      sources.paths.push_back(weights.empty() ? source : fmt::format("{}:{}", source, weights[i]));
      sources.formats[source] = llama_factory_format(entry);
    }
    return sources;
  }

  static std::string llama_factory_path(const fs::path& dir, const JsonNode& entry) {
    for (const char* name :
         {"script_url", "cloud_file_name", "ms_hub_url", "om_hub_url", "ranking", "num_samples", "folder"}) {
      const JsonNode field = entry[name];
      const bool is_off = field.is_null() || (field.json().is_boolean() && !field.json().get<bool>());
      if (!is_off &&
          (entry["hf_hub_url"].is_null() || std::string_view(name).find("hub") == std::string_view::npos))
        fail(ExitCode::kBadConfig, "{}: not supported: leave it out", field.where());
    }
    if (entry["hf_hub_url"].is_null()) return (dir / entry["file_name"].string()).string();
    std::string name = entry["hf_hub_url"].string();
    if (!entry["subset"].is_null()) name += ":" + entry["subset"].string();
    if (!entry["split"].is_null()) name += "/" + entry["split"].string();
    return name;
  }

  static json llama_factory_format(const JsonNode& entry) {
    const bool is_sharegpt = entry["formatting"].string_or("alpaca") == "sharegpt";
    if (!is_sharegpt && entry["formatting"].string_or("alpaca") != "alpaca")
      entry["formatting"].not_supported("format", entry["formatting"].string());
    json format = {{"shape", is_sharegpt ? "sharegpt" : "alpaca"}};
    static constexpr std::pair<std::string_view, std::string_view> kColumns[] = {
        {"prompt", "instruction"}, {"query", "input"}, {"response", "output"},       {"history", "history"},
        {"system", "system"},      {"tools", "tools"}, {"messages", "conversations"}};
    const JsonNode columns = entry["columns"];
    for (const auto& [theirs, ours] : kColumns) {
      if (!columns.is_null() && !columns[theirs].is_null())
        format["columns"][std::string(ours)] = columns[theirs].string();
    }
    // A file of pre-training has its text in the column of the prompt alone.
    if (!is_sharegpt && format.contains("columns") && format["columns"].size() == 1 &&
        format["columns"].contains("instruction"))
      return {{"shape", "text"}, {"columns", {{"text", format["columns"]["instruction"]}}}};
    const JsonNode tags = entry["tags"];
    if (tags.is_null()) return format;
    format["tags"]["role"] = tags["role_tag"].string_or("from");
    format["tags"]["content"] = tags["content_tag"].string_or("value");
    static constexpr std::pair<const char*, const char*> kTags[] = {{"user_tag", "user"},
                                                                    {"assistant_tag", "assistant"},
                                                                    {"system_tag", "system"},
                                                                    {"observation_tag", "tool"}};
    for (const auto& [theirs, role] : kTags) {
      if (!tags[theirs].is_null()) format["tags"]["roles"][tags[theirs].string()] = role;
    }
    return format;
  }

  ForeignSettings& settings_;
  bool is_llama_factory_ = false;
};

}  // namespace

void translate_llama_factory_datasets(ForeignSettings* settings) { LlamaFactoryDatasets(settings).run(); }

}  // namespace tessera
