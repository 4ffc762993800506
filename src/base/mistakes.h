// Errors that are the user's mistakes.
#pragma once

#include <string>
#include <vector>

#include "base/error.h"

namespace tessera {

// True for the user's mistakes, whichever process of a job finds them: kUsage, kBadData, kNoInput,
// kBadConfig.
bool is_users_mistake(ExitCode code);

// Reports several mistakes found together in one line: a single one as is, several numbered.
[[noreturn]] void fail_all(ExitCode code, const std::vector<std::string>& messages);

}  // namespace tessera
