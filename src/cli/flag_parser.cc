#include "cli/flag_parser.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"
#include "formats/huggingface/model_config.h"
#include "settings/run_settings.h"

namespace tessera {
namespace {

bool is_flag_like(const std::string& argument) { return argument.size() > 2 && argument.starts_with("--"); }

bool is_negative_number(const std::string& argument) {
  return argument.size() > 1 && argument[0] == '-' && argument[1] >= '0' && argument[1] <= '9';
}

bool is_help(const std::string& argument) { return argument == "-h" || argument == "--help"; }

bool is_bool_word(const std::string& argument) {
  const std::string word = lower_case(argument);
  static const std::vector<std::string> words = {"true", "false", "yes", "no", "on", "off", "1", "0"};
  return std::find(words.begin(), words.end(), word) != words.end();
}

std::string unknown_flag(const FlagTable& table, const std::string& name) {
  const std::string hint = table.hint(name).text("--", "");
  return fmt::format("unknown flag '--{}'{}", printable(name),
                     hint.empty() ? "; --help lists the known ones" : hint);
}

// Values by flag, in the order in which the flags were first given.
using FlagValues = std::vector<std::pair<const Flag*, std::vector<std::string>>>;

class Parser {
 public:
  Parser(const std::vector<std::string>& arguments, const FlagTable& table,
         std::vector<std::string>* mistakes)
      : arguments_(arguments), table_(table), mistakes_(*mistakes) {
    for (const Flag& flag : table.flags()) {
      if (flag.positional) positionals_.push_back(&flag);
    }
  }

  FlagValues run() {
    bool flags_ended = false;
    while (next_ < arguments_.size()) {
      const std::string& argument = arguments_[next_++];
      if (!flags_ended && argument == "--") {
        flags_ended = true;
        open_list_ = nullptr;
      } else if (!flags_ended && is_flag_like(argument)) {
        add_flag(argument.substr(2));
      } else if (!flags_ended && argument.size() > 1 && argument[0] == '-' &&
                 (open_list_ == nullptr || !is_negative_number(argument))) {
        const std::string hint = table_.hint(argument.substr(1)).text("--", "");
        note_unknown(fmt::format("unknown flag '{}'{}", printable(argument),
                                 hint.empty() ? "; flags begin with two dashes" : hint));
      } else {
        add_plain(argument);
      }
    }
    return std::move(values_);
  }

 private:
  void add_flag(const std::string& text) {
    const size_t equals = text.find('=');
    const std::string name = text.substr(0, equals);
    std::optional<std::string> value;
    if (equals != std::string::npos) value = text.substr(equals + 1);

    if (const Flag* flag = table_.find(name)) {
      if (!value) value = flag->type == FlagType::kBool ? following_bool() : following_value(name, *flag);
      if (flag == given_alone_) fail_twice(*flag, *value);
      store(*flag, *value);
      open_list_ = flag->type == FlagType::kStringList ? flag : nullptr;
      return;
    }
    const bool negated = name.starts_with("no_") || name.starts_with("no-");
    const Flag* flag = negated ? table_.find(name.substr(3)) : nullptr;
    if (flag == nullptr || flag->type != FlagType::kBool) return note_unknown(unknown_flag(table_, name));
    if (value) fail(ExitCode::kUsage, "--{} takes no value, found '{}'", name, printable(*value));
    store(*flag, "false");
    open_list_ = nullptr;
  }

  // Whatever follows an unknown flag is assumed to be its values.
  void note_unknown(const std::string& mistake) {
    mistakes_.push_back(mistake);
    open_list_ = nullptr;
    while (next_ < arguments_.size() &&
           (!arguments_[next_].starts_with('-') || is_negative_number(arguments_[next_])))
      ++next_;
  }

  // Adds an item to the preceding list flag, or a positional argument.
  void add_plain(const std::string& argument) {
    if (open_list_ != nullptr) {
      store(*open_list_, argument);
    } else if (const Flag* lone = lone_flag(argument)) {
      store(*lone, argument);
    } else if (next_positional_ < positionals_.size()) {
      const Flag& flag = *positionals_[next_positional_];
      store(flag, argument);
      if (flag.type != FlagType::kStringList) ++next_positional_;
    } else {
      std::string endings;
      for (const Flag& flag : table_.flags())
        endings += fmt::format("{}", fmt::join(flag.lone_endings, ", "));
      fail(ExitCode::kUsage, "unexpected argument '{}'{}", printable(argument),
           endings.empty()
               ? ""
               : fmt::format("; only a configuration file ({}) may stand without a flag", endings));
    }
  }

  // The flag that claims the argument by its ending.
  const Flag* lone_flag(const std::string& argument) {
    for (const Flag& flag : table_.flags()) {
      const bool ends_so = std::any_of(flag.lone_endings.begin(), flag.lone_endings.end(),
                                       [&](const std::string& ending) { return argument.ends_with(ending); });
      if (!ends_so) continue;
      if (is_given(flag)) fail_twice(flag, argument);
      return given_alone_ = &flag;
    }
    return nullptr;
  }

  bool is_given(const Flag& flag) const {
    return std::any_of(values_.begin(), values_.end(),
                       [&](const auto& entry) { return entry.first == &flag; });
  }

  [[noreturn]] static void fail_twice(const Flag& flag, const std::string& value) {
    fail(ExitCode::kUsage, "--{} is given twice, the second time as '{}'", flag.name, printable(value));
  }

  std::string following_bool() {
    return next_ < arguments_.size() && is_bool_word(arguments_[next_]) ? arguments_[next_++] : "true";
  }

  std::string following_value(const std::string& name, const Flag& flag) {
    const bool is_alone = next_ == arguments_.size() || is_flag_like(arguments_[next_]);
    if (is_alone && !flag.value_if_alone.empty()) return flag.value_if_alone;
    if (next_ == arguments_.size())
      fail(ExitCode::kUsage, "--{}: expected {}, found nothing", name, flag.value_name);
    const std::string& value = arguments_[next_];
    if (is_flag_like(value)) {
      fail(ExitCode::kUsage,
           "--{}: expected {}, found '{}'; a value that begins with dashes is written --{}={}", name,
           flag.value_name, printable(value), name, printable(value));
    }
    ++next_;
    return value;
  }

  void store(const Flag& flag, const std::string& value) {
    auto entry =
        std::find_if(values_.begin(), values_.end(), [&](const auto& e) { return e.first == &flag; });
    if (entry == values_.end()) entry = values_.insert(values_.end(), {&flag, {}});
    if (flag.type != FlagType::kStringList) entry->second.clear();
    entry->second.push_back(value);
  }

  const std::vector<std::string>& arguments_;
  const FlagTable& table_;
  std::vector<std::string>& mistakes_;
  std::vector<const Flag*> positionals_;
  size_t next_positional_ = 0;
  size_t next_ = 0;
  const Flag* open_list_ = nullptr;  // the list flag that takes following bare arguments
  const Flag* given_alone_ = nullptr;
  FlagValues values_;
};

// Rather than the value of an unknown flag: `train`, but not `2` or `a/b`.
bool is_like_command(const std::string& word) {
  return word.starts_with('-') ||
         std::ranges::all_of(word, [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; });
}

// The first argument that is neither a flag nor the value of one: the command that follows begins there.
std::vector<std::string>::const_iterator start_of_rest(const std::vector<std::string>& arguments,
                                                       const FlagTable& table) {
  auto at = arguments.begin();
  while (at != arguments.end() && at->size() > 1 && at->front() == '-' && *at != "--") {
    const std::string& argument = *at++;
    const Flag* flag = is_flag_like(argument) ? table.find(argument.substr(2)) : nullptr;
    if (at == arguments.end()) break;
    if (flag == nullptr) {  // its value follows '=', or it takes none, or it is unknown
      const bool is_unknown =
          is_flag_like(argument) && argument.find('=') == std::string::npos && !argument.starts_with("--no");
      if (is_unknown && !is_like_command(*at)) ++at;
      continue;
    }
    if (flag->type != FlagType::kBool || is_bool_word(*at)) ++at;
  }
  return at;
}

}  // namespace

ParseOutcome parse_flags(const std::vector<std::string>& arguments, FlagTable* table,
                         const std::string& rest_flag) {
  const auto rest = rest_flag.empty() ? arguments.end() : start_of_rest(arguments, *table);
  const std::vector<std::string> own(arguments.begin(), rest);
  const auto end_of_flags = std::find(own.begin(), own.end(), "--");
  if (std::any_of(own.begin(), end_of_flags, is_help)) return ParseOutcome::kHelpWanted;
  std::vector<std::string> mistakes;
  FlagValues given;
  try {
    given = Parser(own, *table, &mistakes).run();
  } catch (const Error& error) {
    mistakes.push_back(error.what());
  }
  for (const auto& [flag, values] : given) {
    try {
      table->set(*flag, values, kCommandLineOrigin);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kUsage) throw;
      mistakes.push_back(error.what());
    }
  }
  if (!mistakes.empty()) fail_all(ExitCode::kUsage, mistakes);
  if (rest != arguments.end())
    table->set(*table->find(rest_flag), {rest, arguments.end()}, kCommandLineOrigin);
  return ParseOutcome::kRun;
}

void limit_flag(Flag& flag, double low, double high) {
  flag.set = [set = flag.set, get = flag.get, name = flag.name, low,
              high](const std::vector<std::string>& values) {
    set(values);
    for (const std::string& text : get()) {
      const double value = std::strtod(text.c_str(), nullptr);
      if (low <= value && value <= high) continue;
      fail(ExitCode::kUsage, "--{}: expected {}, found {}", name,
           std::isinf(high) ? fmt::format("{} or more", low)
                            : fmt::format("a number from {} to {}", low, high),
           text);
    }
  };
}

std::string preset_value_name() { return fmt::format("{}", fmt::join(preset_names(), "|")); }

void check_required_flags(const FlagTable& table) {
  std::vector<std::string> missing, empty;
  for (const Flag& flag : table.flags()) {
    if (!flag.required || (!flag.required_unless.empty() && table.is_set(flag.required_unless))) continue;
    const std::string shown =
        flag.positional ? "argument " + flag.value_name : fmt::format("--{} {}", flag.name, flag.value_name);
    if (!table.is_set(flag.name)) {
      missing.push_back(shown);
    } else if (flag.get() == std::vector<std::string>{""}) {  // a script's variable that is not set
      empty.push_back(shown);
    }
  }
  if (!missing.empty()) fail(ExitCode::kUsage, "missing {}; see --help", fmt::join(missing, ", "));
  if (!empty.empty()) fail(ExitCode::kUsage, "{}: expected a value, found ''", fmt::join(empty, ", "));
}

}  // namespace tessera
