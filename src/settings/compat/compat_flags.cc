#include "settings/compat/compat_flags.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "base/embedded_text.h"
#include "base/error.h"
#include "base/json_value.h"
#include "base/log.h"
#include "base/text.h"
#include "formats/json.h"
#include "io/file.h"
#include "settings/compat/compat_table.h"

namespace tessera {

std::span<const EmbeddedText> compat_texts();  // settings/compat/*.tsv

namespace {

constexpr int64_t kMaxObjectBytes = 1 << 20;

FlagType flag_type(const CompatName& name) {
  static constexpr std::pair<std::string_view, FlagType> kTypes[] = {
      {"bool", FlagType::kBool},   {"integer", FlagType::kInt},     {"number", FlagType::kFloat},
      {"text", FlagType::kString}, {"list", FlagType::kStringList}, {"object", FlagType::kString}};
  const auto found = std::ranges::find(kTypes, name.type, &std::pair<std::string_view, FlagType>::first);
  TESSERA_CHECK(found != std::end(kTypes), "{}: no type '{}'", name.name, name.type);
  return found->second;
}

bool is_nothing(const std::string& value) {
  const std::string word = lower_case(value);
  return word.empty() || word == "none" || word == "null";
}

std::string joined(const std::vector<std::string>& values) {
  return fmt::format("{}", fmt::join(values, " "));
}

// Judges an object key by key.
void judge_object(const CompatTable& table, const CompatName& whole, const std::string& text) {
  const std::string flag(whole.name);
  const std::optional<Json> object = object_of_flag(flag, text);
  if (!object) return;
  if (!object->is_object())
    fail(ExitCode::kUsage, "--{}: expected a JSON object, found {}", flag, found_text(*object));
  for (const auto& [name, value] : object->items()) {
    const CompatName* key = table.find(fmt::format("{}.{}", flag, name));
    if (key == nullptr)
      fail(ExitCode::kUsage, "--{}: unknown key '{}': {}", flag, printable(name), whole.detail);
    const std::string word = value.is_string() ? value.get<std::string>() : value.dump();
    if (value.is_null() || (!word.empty() && key->accepts(word))) continue;
    if (key->use == CompatUse::kRefused) {
      fail(ExitCode::kUsage, "--{}: {} {} is not supported: {}", flag, name, printable(word, 80),
           key->detail);
    }
    log_warning("{}: {} {} has no effect: {}", flag, name, printable(word, 80), key->detail);
  }
}

// The value of another flag that follows from a flag's value; `only_default`: only if that flag still has its
// default.
struct Translation {
  std::function<void(const std::vector<std::string>&)> set;
  std::function<std::vector<std::string>()> get;
  std::string default_text;
  bool only_default;
  std::map<std::string, std::string> ours_by_theirs;
};

// "NAME THEIRS=OURS ..., NAME? ..."
std::vector<Translation> translations_of(const CompatName& name, const FlagTable& table) {
  std::vector<Translation> all;
  for (const std::string& part : split(name.detail, ',')) {
    std::istringstream words(part);
    std::string target;
    words >> target;
    const bool only_default = target.ends_with('?');
    if (only_default) target.pop_back();
    const Flag* flag = table.find(target);
    TESSERA_CHECK(flag != nullptr, "{}: no flag '{}'", name.name, target);
    Translation& translation =
        all.emplace_back(Translation{flag->set, flag->get, flag->default_text, only_default, {}});
    for (std::string pair; words >> pair;) {
      const size_t equals = pair.find('=');
      TESSERA_CHECK(equals != std::string::npos, "{}: '{}'", name.name, pair);
      translation.ours_by_theirs[pair.substr(0, equals)] = pair.substr(equals + 1);
    }
  }
  return all;
}

// A boolean of another program that sets flags of ours, which training_args.json has instead of it.
void declare_translated(FlagTable* table, const CompatName& name) {
  TESSERA_CHECK(name.type == "bool", "{}: expected the type bool", name.name);
  const auto value = std::make_shared<bool>(name.accepted == "true");
  std::vector<Translation> translations = translations_of(name, *table);
  Flag& flag = table->add(std::string(name.name), value.get(), fmt::format("Sets {}.", name.detail));
  flag.set = [value, set = flag.set,
              translations = std::move(translations)](const std::vector<std::string>& values) {
    set(values);
    for (const Translation& each : translations) {
      const auto ours = each.ours_by_theirs.find(*value ? "true" : "false");
      const bool is_kept = each.only_default && each.get() != std::vector{each.default_text};
      if (ours != each.ours_by_theirs.end() && !is_kept) each.set({ours->second});
    }
  };
  flag.get = nullptr;
  flag.listed = false;
}

void declare_name(FlagTable* flags, const CompatTable& table, const CompatName& name) {
  if (name.use == CompatUse::kSets) return declare_translated(flags, name);
  const FlagStatus status = name.use == CompatUse::kRefused ? FlagStatus::kRefused : FlagStatus::kIgnored;
  Flag& flag = flags->add_unsupported(std::string(name.name), flag_type(name), std::string(name.accepted),
                                      status, std::string(name.detail));
  flag.listed = false;
  if (name.type != "object") return;
  flag.set = [&table, &name](const std::vector<std::string>& values) {
    judge_object(table, name, joined(values));
  };
}

std::vector<ForeignNames> read_hints(std::string_view file) {
  static std::deque<std::string> texts;
  const auto kept = [](std::string_view text) { return texts.emplace_back(text).c_str(); };
  std::vector<ForeignNames> hints;
  for (const std::vector<std::string_view>& row : read_cells(file, text_named(compat_texts(), file), 3))
    hints.push_back(
        {kept(row[0]), row[1].empty() ? nullptr : kept(row[1]), row[2].empty() ? nullptr : kept(row[2])});
  return hints;
}

}  // namespace

std::optional<Json> object_of_flag(const std::string& flag, const std::string& text) {
  if (is_nothing(text)) return std::nullopt;
  const bool is_json = text.find_first_not_of(" \t\r\n") == text.find_first_of("{[");
  try {
    return parse_json(is_json ? text : read_text_file(text, kMaxObjectBytes), is_json ? "--" + flag : text);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kBadData) throw;
    fail(ExitCode::kUsage, "{}", error.what());
  }
}

void declare_compat_flags(FlagTable* flags) {
  const auto tables = compat_tables().first(compat_tables().size() - 1);  // the last has keys of files
  for (const CompatTable& table : tables) {
    flags->begin_section(std::string(table.program));
    for (const CompatName& name : table.names) {
      if (!name.type.empty()) declare_name(flags, table, name);
    }
  }
  for (const CompatTable& table : tables) {
    for (const CompatName& name : table.names) {
      if (name.use == CompatUse::kSame && name.name != name.detail)
        flags->add_alias(name.detail, std::string(name.name));
    }
  }
  flags->add_foreign_names(compat_hints());
}

void declare_compat_flag(FlagTable* flags, std::string_view name) {
  for (const CompatTable& table : compat_tables()) {
    const CompatName* found = table.find(name);
    if (found != nullptr && !found->type.empty()) return declare_name(flags, table, *found);
  }
  TESSERA_CHECK(false, "no table has {}", name);
}

std::span<const ForeignNames> compat_hints(std::string_view file) {
  static const auto kAll = [] {
    std::map<std::string_view, std::vector<ForeignNames>> all;
    for (const EmbeddedText& text : compat_texts()) {
      if (text.name.ends_with("hints")) all[text.name] = read_hints(text.name);
    }
    return all;
  }();
  return kAll.at(file);
}

}  // namespace tessera
