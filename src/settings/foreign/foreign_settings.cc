#include "settings/foreign/foreign_settings.h"

#include <algorithm>

#include "base/log.h"
#include "base/text.h"
#include "formats/input_files.h"

namespace tessera {

using nlohmann::json;

const ConfigSetting* ForeignSettings::find(std::string_view name) const {
  const auto found = std::ranges::find(settings_, name, &ConfigSetting::name);
  return found == settings_.end() || found->value.is_null() ? nullptr : &*found;
}

std::string ForeignSettings::word(std::string_view name) const {
  const ConfigSetting* setting = find(name);
  return setting == nullptr ? "" : word_of_value(setting->value);
}

bool ForeignSettings::is_true(std::string_view name) const {
  const std::string text = lower_case(word(name));
  return text == "true" || text == "1" || text == "yes" || text == "on";
}

std::optional<ConfigSetting> ForeignSettings::take(std::string_view name) {
  const auto found = std::ranges::find(settings_, name, &ConfigSetting::name);
  if (found == settings_.end()) return std::nullopt;
  ConfigSetting taken = std::move(*found);
  settings_.erase(found);
  return taken.value.is_null() ? std::nullopt : std::optional(std::move(taken));
}

void ForeignSettings::set_sources(const std::string& flag, ForeignSources sources, int64_t line) {
  for (const auto& [path, format] : sources.formats.items()) {
    if (formats_.contains(path) && formats_[path] != format)
      fail_in(line, "{}: described in two ways: give each source once", printable(path, 200));
    formats_[path] = format;
  }
  formats_line_ = line;
  add(flag, std::move(sources.paths), line);
}

void ForeignSettings::add_formats() {
  if (!formats_.empty()) add("dataset_formats", formats_.dump(), formats_line_);
}

void ForeignSettings::note_no_effect(const std::string& name, const std::string& reason) {
  for (auto& [known, names] : no_effect_) {
    if (known != reason) continue;
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    return;
  }
  no_effect_.push_back({reason, {name}});
}

void ForeignSettings::warn_of_no_effect() const {
  for (const auto& [reason, names] : no_effect_) {
    log_warning("{}: {} {} no effect: {}", origin_, fmt::join(names, ", "),
                names.size() == 1 ? "has" : "have", reason);
  }
}

std::vector<double> ForeignSettings::numbers_of(const ConfigSetting& setting) const {
  std::vector<double> numbers;
  for (const std::string& part : split_list(word_of_value(setting.value))) {
    const json number = json::parse(part, nullptr, false);
    if (!number.is_number())
      fail_in(setting.line, "{}: expected numbers, found '{}'", setting.name, printable(part));
    numbers.push_back(number.get<double>());
  }
  return numbers;
}

std::string word_of_value(const json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump();
}

json structure_of(const json& value) {
  if (!value.is_string()) return value;
  json parsed = json::parse(value.get<std::string>(), nullptr, false);
  return parsed.is_structured() ? parsed : value;
}

bool has_file_format(const std::string& path, std::string_view format) {
  const InputKind kind = input_kind(path);
  return (format == "json" && kind == InputKind::kJson) || (format == "csv" && kind == InputKind::kTable) ||
         (format == "parquet" && kind == InputKind::kParquet) ||
         (format == "text" && kind == InputKind::kText);
}

bool is_file_format(std::string_view name) {
  return name == "json" || name == "csv" || name == "parquet" || name == "text" || name == "arrow";
}

std::string text_of(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

std::vector<std::string> texts_of(const json& object, const char* name) {
  std::vector<std::string> texts;
  const auto found = object.find(name);
  if (found == object.end()) return texts;
  if (found->is_string()) texts.push_back(found->get<std::string>());
  if (found->is_array()) {
    for (const json& item : *found) texts.push_back(word_of_value(item));
  }
  return texts;
}

std::vector<std::string> split_list(std::string_view text) {
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

}  // namespace tessera
