// Manual pages in man(7) format, from the commands' flag tables.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli/command.h"

namespace tessera {

// "tessera-bench-gemm" for "bench gemm".
std::string manual_page_name(const Command& command);
// The page of a command; declares the command's flags.
std::string manual_page(Command* command);
// tessera(1): all commands, exit codes and variables of the environment.
std::string manual_page_of_program(const Commands& all);

}  // namespace tessera
