// The settings of one configuration file while what other programs name is translated.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "settings/foreign/foreign_datasets.h"

namespace tessera {

// The sources that a file describes, as values of flags.
struct ForeignSources {
  nlohmann::json paths = nlohmann::json::array();
  nlohmann::json formats = nlohmann::json::object();  // by path: dataset_formats
};

class ForeignSettings {
 public:
  // Both are kept.
  ForeignSettings(const std::string& origin, std::vector<ConfigSetting>* settings)
      : origin_(origin), settings_(*settings) {}

  // nullptr when the file does not set it, or to null; valid until a setting is added or taken.
  const ConfigSetting* find(std::string_view name) const;
  bool is_set(std::string_view name) const { return find(name) != nullptr; }
  // The setting as text, "" if it is not set.
  std::string word(std::string_view name) const;
  bool is_true(std::string_view name) const;
  // Removes the setting; nullopt for null, too, which sets nothing.
  std::optional<ConfigSetting> take(std::string_view name);
  void add(std::string name, nlohmann::json value, int64_t line) {
    settings_.push_back({std::move(name), std::move(value), line});
  }
  // kBadConfig when a path is described in two ways.
  void set_sources(const std::string& flag, ForeignSources sources, int64_t line);
  // Adds dataset_formats once every source is set.
  void add_formats();
  std::vector<ConfigSetting>& all() { return settings_; }
  // A setting that is dropped; warn_of_no_effect() names it, one line per reason.
  void note_no_effect(const std::string& name, const std::string& reason);
  void warn_of_no_effect() const;
  // "0.5, 0.5" or [0.5, 0.5]; kBadConfig.
  std::vector<double> numbers_of(const ConfigSetting& setting) const;

  template <typename... Args>
  [[noreturn]] void fail_in(int64_t line, fmt::format_string<Args...> format, Args&&... args) const {
    fail(ExitCode::kBadConfig, "{}{}", place(line), fmt::format(format, std::forward<Args>(args)...));
  }
  // The start of a message about a line.
  std::string place(int64_t line) const { return fmt::format("{}:{}: ", origin_, line); }

 private:
  const std::string& origin_;
  std::vector<ConfigSetting>& settings_;
  std::vector<std::pair<std::string, std::vector<std::string>>> no_effect_;  // reason, names
  nlohmann::json formats_ = nlohmann::json::object();
  int64_t formats_line_ = 1;
};

// Text as it is, anything else as JSON. YAML leaves scalars at the top of a file as text.
std::string word_of_value(const nlohmann::json& value);
// Lists and objects, also if they are given as JSON text.
nlohmann::json structure_of(const nlohmann::json& value);
// Whether the file is of the format json, csv, parquet or text of the library datasets, by its name.
bool has_file_format(const std::string& path, std::string_view format);
// Whether load_dataset(name) reads files of one format.
bool is_file_format(std::string_view name);

// A member of an object that is text, "" when it is missing.
std::string text_of(const nlohmann::json& object, const char* name);
// A member that is a text or a list.
std::vector<std::string> texts_of(const nlohmann::json& object, const char* name);
// "a, b" or "[a, b]"
std::vector<std::string> split_list(std::string_view text);

}  // namespace tessera
