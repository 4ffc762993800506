// The settings of a run as a user gives them. fields.tsv has a line for each: its name, limits, other names
// and help; training_flags.cc binds the name to a member of RunSpec, whose type says how its text is read.
// The parser, --help, docs/flags.md, completion, `config show` and training_args.json all follow from the
// two.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/flags.h"

namespace tessera {

// The help of a field. Error(kInternal) if the table has no such line.
std::string help_of_field(std::string_view name);
// Gives a flag what the table says besides.
Flag& complete_field(Flag& flag);

// Declares the flag of a field. `words` are those of a choice, which must outlive the
// table; those of an enum are known.
template <typename T, typename... Words>
Flag& add_field(FlagTable* table, const std::string& name, T* target, const Words&... words) {
  constexpr bool is_choice = sizeof...(words) > 0 || !requires { table->add(name, target, name); };
  if constexpr (is_choice) {
    return complete_field(table->add_choice(name, target, words..., help_of_field(name)));
  } else {
    return complete_field(table->add(name, target, help_of_field(name)));
  }
}

// Bytes, as a size with its unit.
Flag& add_size_field(FlagTable* table, const std::string& name, std::optional<int64_t>* target,
                     const std::string& example);

// Reads other words as ours, whatever their case.
void respell(Flag& flag, std::vector<std::pair<std::string, std::string>> words);

}  // namespace tessera
