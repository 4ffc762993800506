#include "base/flags.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"

namespace tessera {
namespace {

std::string normalised(std::string_view name) {
  std::string out(name);
  std::replace(out.begin(), out.end(), '-', '_');
  return out;
}

std::optional<bool> parse_bool(const std::string& text) {
  const std::string word = lower_case(text);
  if (word == "true" || word == "1" || word == "yes" || word == "on") return true;
  if (word == "false" || word == "0" || word == "no" || word == "off") return false;
  return std::nullopt;
}

std::optional<double> parse_float(const std::string& text) {
  return parse_number(std::string_view(text).substr(text.starts_with('+') ? 1 : 0));
}

std::optional<int64_t> parse_int(const std::string& text) {
  if (const std::optional<int64_t> value = parse_integer(text)) return value;
  const std::optional<double> real = parse_float(text);  // 5e8
  if (real && std::abs(*real) < 0x1.0p53 && *real == std::floor(*real)) return static_cast<int64_t>(*real);
  return std::nullopt;
}

template <typename T>
struct Parsing;
template <>
struct Parsing<bool> {
  static constexpr FlagType kType = FlagType::kBool;
  static constexpr const char* kValueName = "true|false";
  static constexpr const char* kExpected = "true or false";
  static std::optional<bool> parse(const std::string& text) { return parse_bool(text); }
};
template <>
struct Parsing<int64_t> {
  static constexpr FlagType kType = FlagType::kInt;
  static constexpr const char* kValueName = "N";
  static constexpr const char* kExpected = "a whole number";
  static std::optional<int64_t> parse(const std::string& text) { return parse_int(text); }
};
template <>
struct Parsing<double> {
  static constexpr FlagType kType = FlagType::kFloat;
  static constexpr const char* kValueName = "X";
  static constexpr const char* kExpected = "a number";
  static std::optional<double> parse(const std::string& text) { return parse_float(text); }
};

template <typename T>
T parse_single(const std::string& name, const std::vector<std::string>& values) {
  const std::string found = values.size() == 1 ? values[0] : count_of(std::ssize(values), "value");
  const std::optional<T> parsed = values.size() == 1 ? Parsing<T>::parse(values[0]) : std::nullopt;
  if (!parsed) {
    fail(ExitCode::kUsage, "--{}: expected {}, found '{}'", name, Parsing<T>::kExpected, printable(found));
  }
  return *parsed;
}

// A name that ends with * stands for all others that begin so.
bool is_family(const Flag& flag) { return flag.name.ends_with('*'); }

bool means_none(const std::vector<std::string>& values) {
  return values.size() == 1 && (lower_case(values[0]) == "none" || lower_case(values[0]) == "null");
}

Flag make_flag(std::string name, FlagType type, const char* value_name, std::string default_text,
               std::string help) {
  Flag flag;
  flag.name = std::move(name);
  flag.type = type;
  flag.value_name = value_name;
  flag.default_text = std::move(default_text);
  flag.help = std::move(help);
  return flag;
}

// Flags with no bound variable compare by value: the same boolean, number or word as the default, or as one
// of several that '|' separates; none among them is "" as well.
bool is_default_value(const Flag& flag, const std::string& value) {
  if (flag.default_text.empty()) return value.empty() || means_none({value});
  const auto equals = [&](const std::string& text) {
    if (lower_case(value) == lower_case(text)) return true;
    if (flag.type == FlagType::kBool) return parse_bool(value) && parse_bool(value) == parse_bool(text);
    return parse_float(value) && parse_float(value) == parse_float(text);
  };
  std::istringstream texts(flag.default_text);
  for (std::string text; std::getline(texts, text, '|');) {
    if (equals(text) || (text == "none" && value.empty())) return true;
  }
  return false;
}

template <typename T>
Flag value_flag(std::string name, T* target, std::string help) {
  Flag flag = make_flag(std::move(name), Parsing<T>::kType, Parsing<T>::kValueName,
                        fmt::format("{}", *target), std::move(help));
  flag.set = [name_copy = flag.name, target](const std::vector<std::string>& values) {
    *target = parse_single<T>(name_copy, values);
  };
  flag.get = [target] { return std::vector<std::string>{fmt::format("{}", *target)}; };
  return flag;
}

template <typename T>
Flag optional_flag(std::string name, std::optional<T>* target, std::string help) {
  Flag flag = make_flag(std::move(name), Parsing<T>::kType, Parsing<T>::kValueName,
                        *target ? fmt::format("{}", **target) : "", std::move(help));
  flag.set = [name_copy = flag.name, target](const std::vector<std::string>& values) {
    if (means_none(values)) {
      target->reset();
    } else {
      *target = parse_single<T>(name_copy, values);
    }
  };
  flag.get = [target] {
    return *target ? std::vector<std::string>{fmt::format("{}", **target)} : std::vector<std::string>{};
  };
  return flag;
}

}  // namespace

void FlagTable::list_only(const std::vector<std::string_view>& names) {
  for (const std::string_view name : names) TESSERA_CHECK(find(name) != nullptr, "flag '{}'", name);
  for (Flag& flag : flags_) {
    flag.listed = std::find(names.begin(), names.end(), flag.name) != names.end();
    flag.required = false;
  }
}

Flag& FlagTable::append(Flag flag) {
  const Flag* known = find(flag.name);
  TESSERA_CHECK(known == nullptr || is_family(*known), "flag '{}' added twice", flag.name);
  flag.section = section_;
  return flags_.emplace_back(std::move(flag));
}

Flag& FlagTable::add(std::string name, bool* target, std::string help) {
  return append(value_flag(std::move(name), target, std::move(help)));
}

Flag& FlagTable::add(std::string name, int64_t* target, std::string help) {
  return append(value_flag(std::move(name), target, std::move(help)));
}

Flag& FlagTable::add(std::string name, double* target, std::string help) {
  return append(value_flag(std::move(name), target, std::move(help)));
}

Flag& FlagTable::add(std::string name, std::optional<bool>* target, std::string help) {
  return append(optional_flag(std::move(name), target, std::move(help)));
}

Flag& FlagTable::add(std::string name, std::optional<int64_t>* target, std::string help) {
  return append(optional_flag(std::move(name), target, std::move(help)));
}

Flag& FlagTable::add(std::string name, std::optional<double>* target, std::string help) {
  return append(optional_flag(std::move(name), target, std::move(help)));
}

Flag& FlagTable::add_choice(std::string name, std::string* target, std::vector<std::string> choices,
                            std::string help) {
  const auto choose = [target, choices](size_t index) { *target = choices[index]; };
  return add_words(
      std::move(name), choices, choices, [target] { return *target; }, choose, std::move(help));
}

Flag& FlagTable::add_words(std::string name, std::vector<std::string> words, std::vector<std::string> listed,
                           std::function<std::string()> current, std::function<void(size_t)> choose,
                           std::string help) {
  Flag flag = make_flag(std::move(name), FlagType::kString, "", current(), std::move(help));
  flag.value_name = fmt::format("{}", fmt::join(listed, "|"));
  flag.get = [current = std::move(current)] { return std::vector<std::string>{current()}; };
  flag.set = [name_copy = flag.name, words = std::move(words), listed = std::move(listed),
              choose = std::move(choose)](const std::vector<std::string>& values) {
    const std::string found = values.size() == 1 ? values[0] : count_of(std::ssize(values), "value");
    const auto word = std::find(words.begin(), words.end(), found);
    if (word == words.end()) {
      fail(ExitCode::kUsage, "--{}: expected one of {}, found '{}'", name_copy, fmt::join(listed, ", "),
           printable(found));
    }
    choose(static_cast<size_t>(word - words.begin()));
  };
  return append(std::move(flag));
}

Flag& FlagTable::add_size(std::string name, std::optional<int64_t>* target, std::string example,
                          std::string help) {
  const auto set = [name, example = std::move(example), target](const std::string& value) {
    *target = parse_bytes(value);
    if (value.empty() || *target) return;
    const bool is_number = value.find_first_not_of("0123456789.") == std::string::npos;
    fail(ExitCode::kUsage, "--{}: expected a size with its unit, such as {}, found '{}'{}", name, example,
         printable(value), is_number ? fmt::format("; {} bytes would be {}B", value, value) : "");
  };
  const auto get = [target] { return *target ? size_text(**target) : ""; };
  Flag& flag = add_parsed(std::move(name), set, get, std::move(help));
  flag.value_name = "SIZE";
  return flag;
}

Flag& FlagTable::add_parsed(std::string name, std::function<void(const std::string&)> set,
                            std::function<std::string()> get, std::string help) {
  Flag flag = make_flag(std::move(name), FlagType::kString, "TEXT", get(), std::move(help));
  flag.set = [name_copy = flag.name, set = std::move(set)](const std::vector<std::string>& values) {
    if (values.size() != 1)
      fail(ExitCode::kUsage, "--{}: expected one value, found {}", name_copy, values.size());
    set(values[0]);
  };
  flag.get = [get = std::move(get)] { return std::vector<std::string>{get()}; };
  return append(std::move(flag));
}

Flag& FlagTable::add(std::string name, std::string* target, std::string help) {
  return add_parsed(
      std::move(name), [target](const std::string& value) { *target = value; }, [target] { return *target; },
      std::move(help));
}

Flag& FlagTable::add_parsed_list(std::string name, std::function<void(const std::vector<std::string>&)> set,
                                 std::function<std::vector<std::string>()> get, std::string help) {
  Flag flag = make_flag(std::move(name), FlagType::kStringList, "FILE...",
                        fmt::format("{}", fmt::join(get(), " ")), std::move(help));
  flag.set = std::move(set);
  flag.get = std::move(get);
  return append(std::move(flag));
}

Flag& FlagTable::add(std::string name, std::vector<std::string>* target, std::string help) {
  return add_parsed_list(
      std::move(name), [target](const std::vector<std::string>& values) { *target = values; },
      [target] { return *target; }, std::move(help));
}

Flag& FlagTable::add_unsupported(std::string name, FlagType type, std::string default_text, FlagStatus status,
                                 std::string note) {
  TESSERA_CHECK(status != FlagStatus::kHonoured, "flag '{}'", name);
  Flag flag = make_flag(std::move(name), type,
                        type == FlagType::kBool  ? "true|false"
                        : type == FlagType::kInt ? "N"
                                                 : "TEXT",
                        std::move(default_text), "");
  flag.status = status;
  flag.note = std::move(note);
  return append(std::move(flag));
}

void FlagTable::add_alias(std::string_view name, std::string alias) {
  TESSERA_CHECK(find(alias) == nullptr, "flag '{}' added twice", alias);
  const auto flag =
      std::find_if(flags_.begin(), flags_.end(), [&](const Flag& of) { return of.name == name; });
  TESSERA_CHECK(flag != flags_.end(), "flag '{}'", name);
  flag->aliases.push_back(std::move(alias));
}

const Flag* FlagTable::find(std::string_view name) const {
  const std::string wanted = normalised(name);
  for (const Flag& flag : flags_) {
    if (flag.name == wanted) return &flag;
    if (std::find(flag.aliases.begin(), flag.aliases.end(), wanted) != flag.aliases.end()) return &flag;
  }
  const auto family = std::ranges::find_if(flags_, [&](const Flag& flag) {
    return is_family(flag) && wanted.starts_with(flag.name.substr(0, flag.name.size() - 1));
  });
  return family == flags_.end() ? nullptr : &*family;
}

NameHint FlagTable::hint(std::string_view name) const {
  std::vector<std::string> known, usable;
  for (const Flag& flag : flags_) {
    known.push_back(flag.name);
    known.insert(known.end(), flag.aliases.begin(), flag.aliases.end());
    if (flag.status == FlagStatus::kHonoured && flag.listed) usable.push_back(flag.name);
  }
  return hint_for_name(name, known, usable, foreign_names_);
}

void FlagTable::add_foreign_names(std::span<const ForeignNames> names) {
  foreign_names_.insert(foreign_names_.end(), names.begin(), names.end());
}

void FlagTable::set(const Flag& flag, const std::vector<std::string>& values, const std::string& origin) {
  // Applies to file names too: they are written into JSON files.
  for (const std::string& value : values) {
    if (!is_valid_utf8(value)) {
      fail(ExitCode::kUsage, "{}: --{} '{}' is not valid UTF-8", origin, flag.name, printable(value));
    }
    if (value.find('\0') != std::string::npos) {
      fail(ExitCode::kUsage, "{}: --{} '{}' has a zero byte", origin, flag.name, printable(value));
    }
  }
  if (flag.set) {
    try {
      flag.set(values);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("{}: {}", origin, error.what()));
    }
  } else {
    const std::string value = values.size() == 1 ? values[0] : fmt::format("{}", fmt::join(values, " "));
    const bool is_default = is_default_value(flag, value);
    if (!is_default && flag.status == FlagStatus::kRefused) {
      fail(ExitCode::kUsage, "{}: --{} {} is not supported: {}", origin, flag.name, printable(value),
           flag.note);
    }
    if (!is_default) log_warning("{}: --{} has no effect: {}", origin, flag.name, flag.note);
  }
  origins_[flag.name] = origin;
}

std::string FlagTable::origin(std::string_view name) const {
  const auto found = origins_.find(name);
  return found == origins_.end() ? "" : found->second;
}

}  // namespace tessera
