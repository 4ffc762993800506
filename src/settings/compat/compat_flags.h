// The names of other programs as flags and settings of `tessera train`, from the tables.
#pragma once

#include <span>
#include <string_view>

#include "base/flags.h"

namespace tessera {

// Adds the names that have a type in a table, and other spellings of flags that `table` has. None is listed
// in help.
void declare_compat_flags(FlagTable* table);
// Adds the flag of this name.
void declare_compat_flag(FlagTable* table, std::string_view name);

// For suggestions only: none of these names is accepted. `file`: hints for settings, deepspeed_hints for
// keys, others for commands.
std::span<const ForeignNames> compat_hints(std::string_view file = "hints");

}  // namespace tessera
