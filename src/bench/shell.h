// Runs the programs that benchmarks compare with or set networks up with.
#pragma once

#include <string>

#include "base/error.h"

namespace tessera {

// Runs a shell command and returns its standard output and error. Error(on_failure) with the output if it
// fails.
std::string run_shell(const std::string& command, ExitCode on_failure = ExitCode::kIoError);

}  // namespace tessera
