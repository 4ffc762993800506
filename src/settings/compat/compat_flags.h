// The names of other programs as flags and settings of `tessera train`, from the tables.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/flags.h"
#include "formats/json.h"

namespace tessera {

// Adds the names that have a type in a table, and other spellings of flags that `table` has. None is listed
// in help.
void declare_compat_flags(FlagTable* table);
// Adds the flag of this name.
void declare_compat_flag(FlagTable* table, std::string_view name);

// Returns the object that a flag gives as JSON or as the name of a JSON file; nullopt for none or "".
// kNoInput if there is no such file, kUsage for text that is not JSON.
std::optional<Json> object_of_flag(const std::string& flag, const std::string& text);

// For suggestions only: none of these names is accepted. `file`: hints for settings, deepspeed_hints for
// keys, others for commands.
std::span<const ForeignNames> compat_hints(std::string_view file = "hints");

}  // namespace tessera
