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

#include "base/field_table.h"

namespace tessera {

// fields.tsv.
const FieldTable& run_fields();

// Declares the flag of a field, as FieldTable::add() does.
template <typename T, typename... Words>
Flag& add_field(FlagTable* table, const std::string& name, T* target, const Words&... words) {
  return run_fields().add(table, name, target, words...);
}

// Reads other words as ours, whatever their case.
void respell(Flag& flag, std::vector<std::pair<std::string, std::string>> words);

}  // namespace tessera
