#include "arguments/foreign/axolotl_datasets.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/json_value.h"
#include "base/text.h"

namespace tessera {
namespace {

using nlohmann::json;
namespace fs = std::filesystem;

class AxolotlDatasets {
 public:
  explicit AxolotlDatasets(ForeignSettings* settings) : settings_(*settings) {}

  bool run() {
    translate_list("datasets", "dataset");
    translate_list("test_datasets", "eval_dataset");
    return assistant_only_;
  }

 private:
  // A list of objects; lists of texts are ours.
  void translate_list(const std::string& name, const std::string& flag) {
    const ConfigSetting* setting = settings_.find(name);
    const bool has_objects = setting != nullptr && setting->value.is_array() &&
                             std::any_of(setting->value.begin(), setting->value.end(),
                                         [](const json& item) { return item.is_object(); });
    if (!has_objects) return;
    const ConfigSetting taken = *settings_.take(name);
    ForeignSources sources;
    for (const json& item : taken.value) add_axolotl_source(name, item, taken.line, &sources);
    settings_.set_sources(flag, std::move(sources), taken.line);
  }

  void add_axolotl_source(const std::string& name, const json& item, int64_t line, ForeignSources* sources) {
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
    if (!item.is_object()) settings_.fail_in(line, "{}: expected an object with 'path' in every entry", name);
    for (const auto& [key, value] : item.items()) {
      if (std::find(std::begin(kKnown), std::end(kKnown), key) == std::end(kKnown) && !value.is_null())
        settings_.fail_in(line, "{}: '{}' is not supported: leave it out, or prepare the data without it",
                          name, printable(key));
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
    if (path.empty()) settings_.fail_in(line, "{}: expected 'path' in every entry", name);
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
        settings_.fail_in(
            line, "{}: roles_to_train: only the assistant's messages can be trained on apart from others",
            name);
    } else {
      settings_.fail_in(
          line, "{}: the type {} is not supported: expected completion, alpaca, sharegpt or chat_template",
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

  ForeignSettings& settings_;
  bool assistant_only_ = false;
};

}  // namespace

bool translate_axolotl_datasets(ForeignSettings* settings) { return AxolotlDatasets(settings).run(); }

}  // namespace tessera
