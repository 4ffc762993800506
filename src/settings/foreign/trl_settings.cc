#include "settings/foreign/trl_settings.h"

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "base/json_value.h"
#include "base/log.h"
#include "base/text.h"

namespace tessera {
namespace {

using nlohmann::json;

// The object that a setting gives, also as JSON in a text; null if it is none.
json object_in(const ConfigSetting& setting) {
  if (!setting.value.is_string()) return setting.value.is_object() ? setting.value : json();
  json parsed = json::parse(setting.value.get<std::string>(), nullptr, false);
  return parsed.is_object() ? parsed : json();
}

// Whether the program, or a library that it loads after this, reads the variable.
bool is_read(std::string_view name) {
  static constexpr std::string_view kNames[] = {"HUGGINGFACE_HUB_CACHE", "HUGGING_FACE_HUB_TOKEN",
                                                "TRANSFORMERS_OFFLINE", "XDG_CACHE_HOME",
                                                "CUDA_VISIBLE_DEVICES"};
  return name.starts_with("HF_") || name.starts_with("MLFLOW_") ||
         std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

class TrlSettings {
 public:
  explicit TrlSettings(ForeignSettings* settings) : settings_(*settings) {}

  void run() {
    set_variables();
    translate_model();
    translate_rows();
    drop_adapters();
    settings_.warn_of_no_effect();
  }

 private:
  void set_variables() {
    const std::optional<ConfigSetting> taken = settings_.take("env");
    if (!taken) return;
    if (!taken->value.is_object())
      settings_.fail_in(taken->line, "env: expected an object of variables, found {}",
                        found_text(taken->value));
    for (const auto& [name, value] : taken->value.items()) {
      if (value.is_structured() || name.empty() || name.find('=') != std::string::npos)
        settings_.fail_in(taken->line, "env: {}: expected a text, found {}", printable(name),
                          found_text(value));
      if (name.starts_with("TESSERA_"))
        settings_.fail_in(taken->line, "env: {}: set it in the environment of the program", printable(name));
      if (!is_read(name)) {
        settings_.note_no_effect("env " + printable(name, 40), "nothing here reads the variable");
        continue;
      }
      const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
      ::setenv(name.c_str(), text.c_str(), 1);
      log_info("env: {} is set", printable(name, 40));
    }
  }

  // The keys of an object become settings, unless these are there with the same value.
  void move_key(json* object, const char* key, const char* flag, int64_t line) {
    const auto found = object->find(key);
    if (found == object->end()) return;
    json value = *found;
    object->erase(key);
    if (value.is_null()) return;
    if (value.is_string() && value.get<std::string>().starts_with("torch."))
      value = value.get<std::string>().substr(6);
    if (const ConfigSetting* other = settings_.find(flag); other != nullptr && other->value != value) {
      settings_.fail_in(line, "{}: {} and {} {} contradict each other: give one of them", key,
                        found_text(value), flag, found_text(other->value));
    }
    settings_.take(flag);
    settings_.add(flag, value, line);
  }

  void translate_model() {
    const ConfigSetting* setting = settings_.find("model_init_kwargs");
    json object = setting == nullptr ? json() : object_in(*setting);
    if (object.is_null()) return;
    const int64_t line = settings_.take("model_init_kwargs")->line;
    const bool has_other = settings_.find("torch_dtype") != nullptr;
    for (const char* key : {"dtype", "torch_dtype"}) {
      if (object.contains(key) && object[key] == "auto") object.erase(key);  // as without it
      move_key(&object, key, has_other ? "torch_dtype" : "dtype", line);
    }
    move_key(&object, "revision", "model_revision", line);
    if (!object.empty()) settings_.add("model_init_kwargs", std::move(object), line);
  }

  // Rows that are not prepared have token ids and are not truncated.
  void translate_rows() {
    const ConfigSetting* setting = settings_.find("dataset_kwargs");
    json object = setting == nullptr ? json() : object_in(*setting);
    if (!object.is_object() || object.value("skip_prepare_dataset", json()) != json(true)) return;
    const int64_t line = settings_.take("dataset_kwargs")->line;
    object.erase("skip_prepare_dataset");
    if (!object.empty()) settings_.add("dataset_kwargs", std::move(object), line);
    const ConfigSetting* packing = settings_.find("packing");
    if (packing != nullptr && lower_case(word_of(packing->value)) != "false") {
      settings_.fail_in(packing->line,
                        "packing contradicts skip_prepare_dataset, with which TRL packs nothing");
    }
    for (const char* name : {"max_length", "max_seq_length"}) {
      if (settings_.take(name))
        settings_.note_no_effect(name, "skip_prepare_dataset leaves rows as they are");
    }
    settings_.add("max_length", "none", line);
    if (settings_.find("dataset_format") == nullptr) settings_.add("dataset_format", "tokens", line);
  }

  void drop_adapters() {
    const ConfigSetting* use = settings_.find("use_peft");
    if (use == nullptr || lower_case(word_of(use->value)) != "false") return;
    std::vector<std::string> names;
    for (const ConfigSetting& setting : settings_.all()) {
      const bool is_adapters =
          setting.name.starts_with("lora_") || setting.name == "use_rslora" || setting.name == "use_dora";
      if (is_adapters) names.push_back(setting.name);
    }
    for (const std::string& name : names) {
      if (settings_.take(name))
        settings_.note_no_effect(name, "use_peft is false, so all weights are trained, as in TRL");
    }
  }

  static std::string word_of(const json& value) {
    return value.is_string() ? value.get<std::string>() : value.dump();
  }

  ForeignSettings& settings_;
};

}  // namespace

void translate_trl_settings(ForeignSettings* settings) { TrlSettings(settings).run(); }

}  // namespace tessera
