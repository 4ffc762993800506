#include "settings/foreign/trl_datasets.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "base/text.h"
#include "formats/input_files.h"
#include "settings/foreign/script_settings.h"

namespace tessera {
namespace {

using nlohmann::json;

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
    const InputKind kind = input_kind(path);
    const InputKind wanted = format == "json"      ? InputKind::kJson
                             : format == "csv"     ? InputKind::kTable
                             : format == "parquet" ? InputKind::kParquet
                                                   : InputKind::kText;
    if (format == "arrow" || kind != wanted) {
      settings_.fail_in(line_, "datasets: {}: a file is read as its name says, which is not {}: rename it",
                        printable(path, 200), format);
    }
    add_path(path, kind == InputKind::kText);
  }

  // The loaders of datasets that read files of one format.
  static bool is_file_format(const std::string& path) {
    return path == "json" || path == "csv" || path == "parquet" || path == "text" || path == "arrow";
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

}  // namespace

void translate_trl_datasets(ForeignSettings* settings) {
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

}  // namespace tessera
