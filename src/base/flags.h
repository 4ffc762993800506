// One table of named settings serves the command line, configuration files, --help and the flag reference in
// docs/.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/choice.h"
#include "base/name_hint.h"

namespace tessera {

enum class FlagType { kBool, kInt, kFloat, kString, kStringList };

// The treatment of a given flag.
enum class FlagStatus {
  kHonoured,
  kIgnored,  // accepted with a warning: it cannot change the result here
  kRefused,  // an error unless given with its default value: it would change the result
};

struct Flag {
  std::string name;  // canonical spelling: underscores, no leading dashes
  std::vector<std::string> aliases;
  FlagType type = FlagType::kString;
  std::string value_name;    // shown in help: N, FILE, true|false
  std::string default_text;  // shown in help; "" = no default
  std::string help;          // one or more sentences
  std::string section;       // heading under which it is listed
  FlagStatus status = FlagStatus::kHonoured;
  std::string note;  // for kIgnored and kRefused: why, and what to do instead
  bool required = false;
  std::string required_unless;  // another flag that may be given instead
  bool positional = false;
  // A lone argument with one of these endings is this flag's value: tessera train run.yaml.
  std::vector<std::string> lone_endings;
  std::string value_if_alone;  // of a flag that stands without a value: tessera train --fsdp
  bool listed = true;          // in help and in docs/flags.md
  // Parses and stores the values; one value except for kStringList. Throws Error(kUsage) naming the flag,
  // what was expected and what was found. Flags with no bound variable need none: the status decides.
  std::function<void(const std::vector<std::string>&)> set;
  // The current value in the form `set` takes, floats with all digits; empty if there is none. Null for flags
  // with no bound variable.
  std::function<std::vector<std::string>()> get;
};

// The settings of one subcommand, in the order in which help lists them.
class FlagTable {
 public:
  // Binds a flag to a variable, whose current value is the default. Returns the flag for further settings.
  // bool takes true/false/1/0/yes/no, int64_t also takes 1e6, double any finite or non-finite C literal.
  Flag& add(std::string name, bool* target, std::string help);
  Flag& add(std::string name, int64_t* target, std::string help);
  Flag& add(std::string name, double* target, std::string help);
  Flag& add(std::string name, std::string* target, std::string help);
  Flag& add(std::string name, std::vector<std::string>* target, std::string help);
  // Settings without a default: "none" and "null" clear the value.
  Flag& add(std::string name, std::optional<bool>* target, std::string help);
  Flag& add(std::string name, std::optional<int64_t>* target, std::string help);
  Flag& add(std::string name, std::optional<double>* target, std::string help);
  // One of `choices`, spelled exactly as given.
  Flag& add_choice(std::string name, std::string* target, std::vector<std::string> choices, std::string help);
  // A choice of words, which must outlive the table. If a value has several spellings, help lists the first.
  template <typename T>
  Flag& add_choice(std::string name, T* target, std::type_identity_t<std::span<const Word<T>>> words,
                   std::string help);
  template <Choice E>
  Flag& add_choice(std::string name, E* target, std::string help);
  // Bytes, as a size with its unit (parse_bytes), or "" for none; `example` is shown in messages.
  Flag& add_size(std::string name, std::optional<int64_t>* target, std::string example, std::string help);
  // One value that `set` parses, and that `get` gives in the form that `set` takes.
  Flag& add_parsed(std::string name, std::function<void(const std::string&)> set,
                   std::function<std::string()> get, std::string help);
  Flag& add_parsed_list(std::string name, std::function<void(const std::vector<std::string>&)> set,
                        std::function<std::vector<std::string>()> get, std::string help);
  // A known flag with no bound variable (kIgnored or kRefused), unless it has its default
  // or one of several values separated by '|'. A `set` of its own, if given, decides
  // instead.
  Flag& add_unsupported(std::string name, FlagType type, std::string default_text, FlagStatus status,
                        std::string note);

  // Another spelling of a flag that has been declared.
  void add_alias(std::string_view name, std::string alias);

  // Flags added from here on are listed under this heading.
  void begin_section(std::string title) { section_ = std::move(title); }

  const std::vector<Flag>& flags() const { return flags_; }

  // For a command that also accepts another command's flags: of the flags declared so far, lists only these
  // and requires none. The others are still accepted.
  void list_only(const std::vector<std::string_view>& names);

  // Looks up a canonical name or alias without leading dashes; '-' and '_' are equivalent. nullptr if
  // unknown.
  const Flag* find(std::string_view name) const;
  // Suggestions for a name that find() does not know.
  NameHint hint(std::string_view name) const;
  // Names from other programs, for hint().
  void add_foreign_names(std::span<const ForeignNames> names);

  // Stores the values of a flag; `origin` ("command line", a file name) is shown in messages. Handles
  // kIgnored (warning) and kRefused (Error(kUsage) unless the value equals the default).
  void set(const Flag& flag, const std::vector<std::string>& values, const std::string& origin);
  // True if set() was called for the flag with this canonical name, even with the default value.
  bool is_set(std::string_view name) const { return origins_.contains(name); }
  // The origin of that call, the last one if there were several; "" if the flag is not set.
  std::string origin(std::string_view name) const;

 private:
  Flag& append(Flag flag);
  // One of `words` that is kept elsewhere: `current` gets it, `choose` sets the one with this index. Help and
  // messages show `listed`.
  Flag& add_words(std::string name, std::vector<std::string> words, std::vector<std::string> listed,
                  std::function<std::string()> current, std::function<void(size_t)> choose, std::string help);

  std::vector<Flag> flags_;
  std::vector<ForeignNames> foreign_names_;
  std::map<std::string, std::string, std::less<>> origins_;  // of flags that are set
  std::string section_ = "Options";
};

template <typename T>
Flag& FlagTable::add_choice(std::string name, T* target, std::type_identity_t<std::span<const Word<T>>> words,
                            std::string help) {
  std::vector<std::string> texts, listed;
  for (const Word<T>& word : words) {
    texts.emplace_back(word.text);
    if (!word.text.empty() && word_of(words, word.value) == word.text) listed.emplace_back(word.text);
  }
  return add_words(
      std::move(name), std::move(texts), std::move(listed),
      [words, target] { return std::string(word_of(words, *target)); },
      [words, target](size_t index) { *target = words[index].value; }, std::move(help));
}

template <Choice E>
Flag& FlagTable::add_choice(std::string name, E* target, std::string help) {
  static constexpr auto kWords = choice_words(E());
  return add_choice(std::move(name), target, kWords, std::move(help));
}

}  // namespace tessera
