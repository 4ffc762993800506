// Hugging Face arguments that are known but have no variable here.
#pragma once

#include "base/flags.h"

namespace tessera {

// Adds them to `table`: ignored with a warning where they cannot change the result, refused where they would.
void declare_unsupported_flags(FlagTable* table);

}  // namespace tessera
