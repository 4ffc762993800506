// Errors that are the user's.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace tessera {

// What the user got wrong, whichever process of a job finds it: kUsage, kBadData, kNoInput, kBadConfig.
bool is_users_mistake(ExitCode code);

// Several mistakes that were found together, in one line: one as it is, more of them numbered.
[[noreturn]] void fail_all(ExitCode code, const std::vector<std::string>& messages);

}  // namespace tessera
