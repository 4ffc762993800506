// Hugging Face arguments that are recognized but have no counterpart here.
#pragma once

#include "base/flags.h"

namespace tessera {

// Adds them to `table`: ignored with a warning if they cannot change the result, refused if they would.
void declare_unsupported_flags(FlagTable* table);

}  // namespace tessera
