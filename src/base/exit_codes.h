// The exit codes of the program, in words.
#pragma once

#include <span>

namespace tessera {

struct ExitCodeMeaning {
  int code;
  const char* meaning;
};
std::span<const ExitCodeMeaning> exit_code_meanings();

}  // namespace tessera
