#include "arguments/foreign/foreign_datasets.h"

#include <algorithm>
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

// The sources that a file describes, as values of flags.
struct Sources {
  json paths = json::array();
  json formats = json::object();  // by path: dataset_formats
};

class Translation {
 public:
  Translation(const std::string& origin, std::vector<ConfigSetting>* settings)
      : origin_(origin), settings_(*settings) {}

  void run() {
    translate_axolotl("datasets", "dataset");
    translate_axolotl("test_datasets", "eval_dataset");
    translate_held_out_share();
    translate_template();
    translate_llama_factory();
    if (!formats_.empty()) settings_.push_back({"dataset_formats", formats_.dump(), formats_line_});
    if (assistant_only_ && find("assistant_only_loss") == nullptr)
      settings_.push_back({"assistant_only_loss", true, formats_line_});
  }

 private:
  ConfigSetting* find(std::string_view name) {
    const auto found = std::find_if(settings_.begin(), settings_.end(),
                                    [name](const ConfigSetting& setting) { return setting.name == name; });
    return found == settings_.end() ? nullptr : &*found;
  }
  // nullopt for null, too, which sets nothing.
  std::optional<ConfigSetting> take(std::string_view name) {
    ConfigSetting* setting = find(name);
    if (setting == nullptr) return std::nullopt;
    ConfigSetting taken = *setting;
    settings_.erase(settings_.begin() + (setting - settings_.data()));
    return taken.value.is_null() ? std::nullopt : std::optional(std::move(taken));
  }
  template <typename... Args>
  [[noreturn]] void fail_in(int64_t line, fmt::format_string<Args...> format, Args&&... args) const {
    fail(ExitCode::kBadConfig, "{}:{}: {}", origin_, line, fmt::format(format, std::forward<Args>(args)...));
  }

  void set_sources(const std::string& flag, Sources sources, int64_t line) {
    for (const auto& [path, format] : sources.formats.items()) {
      if (formats_.contains(path) && formats_[path] != format)
        fail_in(line, "{}: described in two ways: give each source once", printable(path, 200));
      formats_[path] = format;
    }
    formats_line_ = line;
    settings_.push_back({flag, std::move(sources.paths), line});
  }

  // A list of objects; lists of texts are ours.
  void translate_axolotl(const std::string& name, const std::string& flag) {
    const ConfigSetting* setting = find(name);
    const bool has_objects = setting != nullptr && setting->value.is_array() &&
                             std::any_of(setting->value.begin(), setting->value.end(),
                                         [](const json& item) { return item.is_object(); });
    if (!has_objects) return;
    const ConfigSetting taken = *take(name);
    Sources sources;
    for (const json& item : taken.value) add_axolotl_source(name, item, taken.line, &sources);
    set_sources(flag, std::move(sources), taken.line);
  }

  void add_axolotl_source(const std::string& name, const json& item, int64_t line, Sources* sources) {
    static constexpr std::string_view kKnown[] = {"path",
                                                  "type",
                                                  "ds_type",
                                                  "data_files",
                                                  "split",
                                                  "name",
                                                  "revision",
                                                  "field",
                                                  "field_messages",
                                                  "message_field_role",
                                                  "message_field_content",
                                                  "message_property_mappings",
                                                  "roles",
                                                  "roles_to_train",
                                                  "train_on_eos",
                                                  "conversation",
                                                  "trust_remote_code"};
    if (!item.is_object()) fail_in(line, "{}: expected an object with 'path' in every entry", name);
    for (const auto& [key, value] : item.items()) {
      if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown) && !value.is_null())
        fail_in(line, "{}: '{}' is not supported: leave it out, or prepare the data without it", name,
                printable(key));
    }
    json format = json::object();
    read_axolotl_type(name, item, line, &format);
    std::vector<std::string> paths = texts_of(item, "data_files");
    if (paths.empty()) paths.push_back(hub_name(name, item, line));
    for (const std::string& path : paths) {
      sources->paths.push_back(path);
      sources->formats[path] = format;
    }
  }

  // org/name[@revision][:config][/split], or a local path.
  std::string hub_name(const std::string& name, const json& item, int64_t line) const {
    std::string path = text_of(item, "path");
    if (path.empty()) fail_in(line, "{}: expected 'path' in every entry", name);
    std::error_code error;
    if (fs::exists(path, error)) return path;
    if (const std::string revision = text_of(item, "revision"); !revision.empty()) path += "@" + revision;
    if (const std::string config = text_of(item, "name"); !config.empty()) path += ":" + config;
    if (const std::string split = text_of(item, "split"); !split.empty()) path += "/" + split;
    return path;
  }

  void read_axolotl_type(const std::string& name, const json& item, int64_t line, json* format) {
    const std::string type = text_of(item, "type");
    if (type == "completion" || type == "pretrain") {
      (*format)["shape"] = "text";
      if (const std::string field = text_of(item, "field"); !field.empty())
        (*format)["columns"]["text"] = field;
    } else if (type == "alpaca") {
      (*format)["shape"] = "alpaca";
    } else if (type == "chat_template" || type == "sharegpt") {
      const bool is_sharegpt = type == "sharegpt";
      (*format)["shape"] = is_sharegpt ? "sharegpt" : "messages";
      const std::string field = text_of(item, "field_messages");
      if (!field.empty()) (*format)["columns"][is_sharegpt ? "conversations" : "messages"] = field;
      read_message_fields(item, format);
      assistant_only_ = true;  // roles_to_train is [assistant] unless it is given
      const std::vector<std::string> trained = texts_of(item, "roles_to_train");
      if (trained.size() > 1 || (trained.size() == 1 && trained[0] != "assistant" && trained[0] != "gpt"))
        fail_in(line, "{}: roles_to_train: only the assistant's messages can be trained on apart from others",
                name);
    } else {
      fail_in(line,
              "{}: the type {} is not supported: expected completion, alpaca, sharegpt or chat_template",
              name, item.contains("type") ? found_text(item["type"]) : "that is missing");
    }
  }

  static void read_message_fields(const json& item, json* format) {
    for (const auto& [ours, theirs] :
         {std::pair{"role", "message_field_role"}, std::pair{"content", "message_field_content"}}) {
      if (const std::string field = text_of(item, theirs); !field.empty()) (*format)["tags"][ours] = field;
    }
    if (const auto mapping = item.find("message_property_mappings"); mapping != item.end()) {
      for (const char* ours : {"role", "content"}) {
        if (const std::string field = text_of(*mapping, ours); !field.empty())
          (*format)["tags"][ours] = field;
      }
    }
    if (const auto roles = item.find("roles"); roles != item.end() && roles->is_object()) {
      for (const auto& [role, names] : roles->items()) {
        for (const json& alias : names) {
          if (alias.is_string()) (*format)["tags"]["roles"][alias.get<std::string>()] = role;
        }
      }
    }
  }

  // A share of the rows, or 0.
  void translate_held_out_share() {
    for (const char* name : {"val_size", "val_set_size"}) {
      const std::optional<ConfigSetting> taken = take(name);
      if (!taken) continue;
      const std::vector<double> share = numbers_of(*taken);
      if (share.size() != 1 || !(share[0] >= 0 && share[0] < 1)) {
        fail_in(taken->line, "{}: expected a share of the rows from 0 to below 1, found {}", name,
                found_text(taken->value));
      }
      if (share[0] > 0) settings_.push_back({"validation_split_percentage", 100 * share[0], taken->line});
    }
  }

  void translate_template() {
    const std::optional<ConfigSetting> taken = take("template");
    if (!taken) return;
    is_llama_factory_ = true;
    const std::string name = taken->value.is_string() ? taken->value.get<std::string>() : taken->value.dump();
    if (name != "llama3" && name != "chatml") {
      fail_in(taken->line,
              "template: {} is not built in: leave it out to use the model's own chat template, or set "
              "chat_template "
              "to a file, chatml or llama3",
              printable(name));
    }
    settings_.push_back({"chat_template", name, taken->line});
  }

  void translate_llama_factory() {
    const std::optional<ConfigSetting> folder = take("dataset_dir");
    const std::optional<ConfigSetting> probabilities = take("interleave_probs");
    const std::optional<ConfigSetting> strategy = take("mix_strategy");
    if (strategy && strategy->value != "concat" && strategy->value != "interleave_under") {
      fail_in(strategy->line, "mix_strategy: expected concat or interleave_under, found {}",
              found_text(strategy->value));
    }
    if (folder && !folder->value.is_string())
      fail_in(folder->line, "dataset_dir: expected a folder, found {}", found_text(folder->value));
    if (!folder && !is_llama_factory_) return;
    const fs::path dir = folder ? folder->value.get<std::string>() : "data";
    const std::vector<double> weights = probabilities ? numbers_of(*probabilities) : std::vector<double>();
    for (const char* flag : {"dataset", "eval_dataset"}) {
      const ConfigSetting* setting = find(flag);
      if (setting == nullptr || !setting->value.is_string()) continue;
      const ConfigSetting taken = *take(flag);
      set_sources(flag,
                  llama_factory_sources(
                      dir, taken, std::string_view(flag) == "dataset" ? weights : std::vector<double>()),
                  taken.line);
    }
  }

  std::vector<double> numbers_of(const ConfigSetting& setting) const {
    std::vector<double> numbers;
    for (const std::string& part :
         split_list(setting.value.is_string() ? setting.value.get<std::string>() : setting.value.dump())) {
      const json number = json::parse(part, nullptr, false);
      if (!number.is_number())
        fail_in(setting.line, "{}: expected numbers, found '{}'", setting.name, printable(part));
      numbers.push_back(number.get<double>());
    }
    return numbers;
  }

  Sources llama_factory_sources(const fs::path& dir, const ConfigSetting& setting,
                                const std::vector<double>& weights) {
    const fs::path path = dir / "dataset_info.json";
    const std::string origin = path.string();
    const json info = parse_json(read_text_file(path), origin);
    const std::vector<std::string> names = split_list(setting.value.get<std::string>());
    if (!weights.empty() && weights.size() != names.size())
      fail_in(setting.line, "interleave_probs: expected one number for each of {} datasets, found {}",
              names.size(), weights.size());
    Sources sources;
    for (size_t i = 0; i < names.size(); ++i) {
      if (!info.is_object() || !info.contains(names[i])) {
        fail_in(setting.line, "{}: '{}' is not described in {}", setting.name, printable(names[i]), origin);
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

  static std::string text_of(const json& object, const char* name) {
    const auto found = object.find(name);
    return found != object.end() && found->is_string() ? found->get<std::string>() : "";
  }
  static std::vector<std::string> texts_of(const json& object, const char* name) {
    std::vector<std::string> texts;
    const auto found = object.find(name);
    if (found == object.end()) return texts;
    if (found->is_string()) texts.push_back(found->get<std::string>());
    if (found->is_array()) {
      for (const json& item : *found)
        texts.push_back(item.is_string() ? item.get<std::string>() : item.dump());
    }
    return texts;
  }
  // "a, b" or "[a, b]"
  static std::vector<std::string> split_list(std::string_view text) {
    std::vector<std::string> parts(1);
    for (const char c : text) {
      if (c == ',') {
        parts.emplace_back();
      } else if (c != ' ' && c != '[' && c != ']') {
        parts.back() += c;
      }
    }
    std::erase(parts, "");
    return parts;
  }

  const std::string& origin_;
  std::vector<ConfigSetting>& settings_;
  json formats_ = json::object();
  int64_t formats_line_ = 1;
  bool assistant_only_ = false;
  bool is_llama_factory_ = false;
};

}  // namespace

void translate_foreign_datasets(const std::string& origin, std::vector<ConfigSetting>* settings) {
  Translation(origin, settings).run();
}

}  // namespace tessera
