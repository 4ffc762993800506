// A text table of flags, one per line: five cells separated by tabs, "-" for an empty one.
//
//   NAME
//   RULES    required; positional; =DEFAULT; the limits of the value: "[0,1)" from 0 to below 1, "(0,)" above
//            0; limits after "steps" apply to a whole number of steps, or below 1 to a fraction of all
//   ALIASES  other names, separated by |
//   VALUE    how help shows the value, if not by its type
//   HELP     one or more sentences
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/flags.h"

namespace tessera {

class FieldTable {
 public:
  // `text` must outlive this; messages name the `file`.
  FieldTable(std::string file, std::string_view text);

  bool has(std::string_view name) const;
  std::vector<std::string> names() const;
  // The help of a field. Error(kInternal) if the table has no such line.
  std::string help_of(std::string_view name) const;
  // Sets the remaining properties of a flag from the table.
  Flag& complete(Flag& flag) const;

  // Declares the flag of a field. `words` are the words of a choice, which must outlive the flags; an enum's
  // words are known.
  template <typename T, typename... Words>
  Flag& add(FlagTable* flags, const std::string& name, T* target, const Words&... words) const {
    constexpr bool is_choice = sizeof...(words) > 0 || !requires { flags->add(name, target, name); };
    if constexpr (is_choice) {
      return complete(flags->add_choice(name, target, words..., help_of(name)));
    } else {
      return complete(flags->add(name, target, help_of(name)));
    }
  }
  Flag& add(FlagTable* flags, const std::string& name, std::string* target,
            std::vector<std::string> words) const {
    return complete(flags->add_choice(name, target, std::move(words), help_of(name)));
  }
  // Bytes, as a size with its unit.
  Flag& add_size(FlagTable* flags, const std::string& name, std::optional<int64_t>* target,
                 const std::string& example) const {
    return complete(flags->add_size(name, target, example, help_of(name)));
  }

 private:
  struct Field {
    std::string_view name, rules, aliases, value_name, help;
  };
  const Field& field(std::string_view name) const;

  std::string file_;
  std::vector<Field> fields_;
};

}  // namespace tessera
