#include "cli/flag_parser.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/text.h"

namespace tessera {
namespace {

constexpr const char* kOrigin = "command line";

bool is_flag_like(const std::string& argument) { return argument.size() > 2 && argument.starts_with("--"); }

bool is_help(const std::string& argument) { return argument == "-h" || argument == "--help"; }

bool is_bool_word(const std::string& argument) {
  const std::string word = lower_case(argument);
  static const std::vector<std::string> words = {"true", "false", "yes", "no", "on", "off", "1", "0"};
  return std::find(words.begin(), words.end(), word) != words.end();
}

[[noreturn]] void fail_unknown(const FlagTable& table, const std::string& name) {
  const std::string nearest = table.nearest(name);
  if (nearest.empty())
    fail(ExitCode::kUsage, "unknown flag '--{}'; --help lists the known ones", printable(name));
  fail(ExitCode::kUsage, "unknown flag '--{}'; did you mean --{}?", printable(name), nearest);
}

// Values by flag, in the order in which the flags were first given.
using FlagValues = std::vector<std::pair<const Flag*, std::vector<std::string>>>;

class Parser {
 public:
  Parser(const std::vector<std::string>& arguments, const FlagTable& table)
      : arguments_(arguments), table_(table) {
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
      } else if (!flags_ended && argument.size() > 1 && argument[0] == '-') {
        fail(ExitCode::kUsage, "unknown flag '{}'; flags begin with two dashes", printable(argument));
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
      store(*flag, *value);
      open_list_ = flag->type == FlagType::kStringList ? flag : nullptr;
      return;
    }
    const bool negated = name.starts_with("no_") || name.starts_with("no-");
    const Flag* flag = negated ? table_.find(name.substr(3)) : nullptr;
    if (flag == nullptr || flag->type != FlagType::kBool) fail_unknown(table_, name);
    if (value) fail(ExitCode::kUsage, "--{} takes no value, found '{}'", name, printable(*value));
    store(*flag, "false");
    open_list_ = nullptr;
  }

  // One more item of the list before it, or a positional argument.
  void add_plain(const std::string& argument) {
    if (open_list_ != nullptr) {
      store(*open_list_, argument);
    } else if (next_positional_ < positionals_.size()) {
      const Flag& flag = *positionals_[next_positional_];
      store(flag, argument);
      if (flag.type != FlagType::kStringList) ++next_positional_;
    } else {
      fail(ExitCode::kUsage, "unexpected argument '{}'", printable(argument));
    }
  }

  std::string following_bool() {
    return next_ < arguments_.size() && is_bool_word(arguments_[next_]) ? arguments_[next_++] : "true";
  }

  std::string following_value(const std::string& name, const Flag& flag) {
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
  std::vector<const Flag*> positionals_;
  size_t next_positional_ = 0;
  size_t next_ = 0;
  const Flag* open_list_ = nullptr;  // takes the arguments that follow without a flag
  FlagValues values_;
};

// The first argument that is neither a flag nor the value of one: there begins the command that follows.
std::vector<std::string>::const_iterator start_of_rest(const std::vector<std::string>& arguments,
                                                       const FlagTable& table) {
  auto at = arguments.begin();
  while (at != arguments.end() && at->size() > 1 && at->front() == '-' && *at != "--") {
    const std::string& argument = *at++;
    const Flag* flag = is_flag_like(argument) ? table.find(argument.substr(2)) : nullptr;
    if (flag == nullptr || at == arguments.end()) continue;  // has its value behind '=', or takes none
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
  for (const auto& [flag, values] : Parser(own, *table).run()) table->set(*flag, values, kOrigin);
  if (rest != arguments.end()) table->set(*table->find(rest_flag), {rest, arguments.end()}, kOrigin);
  return ParseOutcome::kRun;
}

void check_required_flags(const FlagTable& table) {
  for (const Flag& flag : table.flags()) {
    if (!flag.required || table.is_set(flag.name)) continue;
    if (flag.positional) fail(ExitCode::kUsage, "missing argument {}; see --help", flag.value_name);
    fail(ExitCode::kUsage, "missing --{} {}; see --help", flag.name, flag.value_name);
  }
}

}  // namespace tessera
