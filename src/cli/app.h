// The program behind main(): finds the subcommand, sets its flags, runs it.
#pragma once

#include <string>
#include <vector>

namespace tessera {

// Arguments without the program's name. Throws Error.
void run_program(const std::vector<std::string>& arguments);

}  // namespace tessera
