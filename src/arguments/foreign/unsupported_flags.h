// Hugging Face arguments that are recognized but have no counterpart here.
#pragma once

#include <span>
#include <string_view>

#include "base/flags.h"

namespace tessera {

// A flag of another program, declared by FlagTable::add_unsupported().
struct UnsupportedFlag {
  const char* name;
  FlagType type;
  const char* default_text;  // the other program's default; accepted silently
  const char* note;
};

// Adds them to `table`: ignored with a warning if they cannot change the result, refused if they would.
void declare_unsupported_flags(FlagTable* table);
// Adds the one of this name.
void declare_unsupported_flag(FlagTable* table, std::string_view name);

}  // namespace tessera
