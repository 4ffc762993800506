#include "settings/foreign/trl_settings.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <system_error>

#include "base/json_value.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/input_files.h"
#include "settings/foreign/script_settings.h"

namespace tessera {
namespace {

using nlohmann::json;

// Whether the program, or a library that it loads after this, reads the variable.
bool is_read(std::string_view name) {
  static constexpr std::string_view kNames[] = {"HUGGINGFACE_HUB_CACHE", "HUGGING_FACE_HUB_TOKEN",
                                                "TRANSFORMERS_OFFLINE", "XDG_CACHE_HOME",
                                                "CUDA_VISIBLE_DEVICES"};
  return name.starts_with("HF_") || name.starts_with("MLFLOW_") ||
         std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
}

class TrlDatasets {
 public:
  TrlDatasets(ForeignSettings* settings, int64_t line) : settings_(*settings), line_(line) {}

  void add(const json& item) {
    for (const auto& [key, value] : item.items()) check_key(key, value);
    const std::string path = text_of(item, "path");
    if (path.empty()) settings_.fail_in(line_, "datasets: expected 'path' in every entry");
    const std::string named_split = text_of(item, "split");
    const std::string split = named_split.empty() ? "train" : named_split;
    if (split.find_first_of("[+") != split.npos)
      settings_.fail_in(line_, "datasets: split {} is not supported: name a split", printable(split));
    if (is_file_format(path)) {
      const std::vector<std::string> files = files_of(item, split);
      if (files.empty()) settings_.fail_in(line_, "datasets: {} needs data_files", path);
      for (const std::string& file : files) add_file(file, path);
      return;
    }
    if (!item.value("data_files", json()).is_null())
      settings_.fail_in(line_, "datasets: data_files of {} is not supported: write their paths as dataset",
                        printable(path, 200));
    std::error_code error;
    std::string folder = path;
    if (const std::string data_dir = text_of(item, "data_dir"); !data_dir.empty()) {
      if (!std::filesystem::is_directory(path, error))
        settings_.fail_in(line_, "datasets: data_dir of {} is not supported, as it is no folder",
                          printable(path, 200));
      folder = (std::filesystem::path(path) / data_dir).string();
    }
    for (const std::string& source : split_sources(folder, text_of(item, "name"), split)) {
      const bool is_text =
          std::filesystem::is_regular_file(source, error) && input_kind(source) == InputKind::kText;
      add_path(source, is_text);
    }
  }

  ForeignSources take() { return std::move(sources_); }

 private:
  // Every line of a text file is a row, as the library datasets reads it.
  void add_path(const std::string& path, bool is_text) {
    sources_.paths.push_back(path);
    if (is_text) sources_.formats[path] = {{"shape", "text"}, {"lines", true}};
  }
  void add_file(const std::string& path, const std::string& format) {
    if (!has_file_format(path, format)) {
      settings_.fail_in(line_, "datasets: {}: a file is read as its name says, which is not {}: rename it",
                        printable(path, 200), format);
    }
    add_path(path, format == "text");
  }

  void check_key(const std::string& key, const json& value) const {
    if (value.is_null()) return;
    if (key == "columns")
      settings_.fail_in(line_, "datasets: columns is not supported: dataset_format says what rows are");
    if (key == "fraction") {
      settings_.fail_in(
          line_,
          "datasets: fraction is not supported, as it keeps the first rows of each: write weights "
          "as in dataset: a.jsonl:0.7 b.jsonl:0.3, or smaller files");
    }
    for (const char* known : {"path", "name", "data_dir", "data_files", "split"}) {
      if (key == known) return;
    }
    settings_.fail_in(line_, "datasets: unknown key '{}', which TRL refuses, too", printable(key));
  }

  // A name, a list of names, or an object of these by split.
  static std::vector<std::string> files_of(const json& item, const std::string& split) {
    json files = item.value("data_files", json());
    if (files.is_object()) files = files.value(split, json());
    if (files.is_string()) files = json::array({files});
    std::vector<std::string> names;
    for (const json& file : files) {
      if (file.is_string()) names.push_back(file.get<std::string>());
    }
    return names;
  }

  ForeignSettings& settings_;
  int64_t line_;
  ForeignSources sources_;
};

// Replaces the objects of `datasets` by dataset. Leaves the lists of Axolotl, whose entries have a type or
// whose file has a base_model.
void translate_mixture(ForeignSettings* settings) {
  const ConfigSetting* setting = settings->find("datasets");
  if (setting == nullptr || setting->value == json::array()) {
    settings->take("datasets");
    return;
  }
  if (!setting->value.is_array()) return;
  const auto is_trls = [](const json& item) { return item.is_object() && !item.contains("type"); };
  if (settings->find("base_model") != nullptr || !std::ranges::all_of(setting->value, is_trls)) return;
  const ConfigSetting taken = *settings->take("datasets");
  TrlDatasets datasets(settings, taken.line);
  for (const json& item : taken.value) datasets.add(item);
  settings->set_sources("dataset", datasets.take(), taken.line);
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
      ::setenv(name.c_str(), word_of_value(value).c_str(), 1);
      log_info("env: {} is set", printable(name, 40));
    }
  }

  json object_of(std::string_view name) const {
    const ConfigSetting* setting = settings_.find(name);
    return setting == nullptr ? json() : structure_of(setting->value);
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
    json object = object_of("model_init_kwargs");
    if (!object.is_object()) return;
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
    json object = object_of("dataset_kwargs");
    if (!object.is_object() || object.value("skip_prepare_dataset", json()) != json(true)) return;
    const int64_t line = settings_.take("dataset_kwargs")->line;
    object.erase("skip_prepare_dataset");
    if (!object.empty()) settings_.add("dataset_kwargs", std::move(object), line);
    const ConfigSetting* packing = settings_.find("packing");
    if (packing != nullptr && lower_case(settings_.word("packing")) != "false") {
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
    if (lower_case(settings_.word("use_peft")) != "false") return;
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

  ForeignSettings& settings_;
};

}  // namespace

void translate_trl(ForeignSettings* settings) {
  translate_mixture(settings);
  TrlSettings(settings).run();
}

}  // namespace tessera
