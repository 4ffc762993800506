// The program behind main(): finds the subcommand, sets its flags, runs it.
#pragma once

#include <string>
#include <vector>

namespace tessera {

// Arguments without the program's name. Throws Error.
void run_program(const std::vector<std::string>& arguments);

// Throws the Error of a wrong command, flag, value or configuration file without running the command. True if
// the command is to be quiet.
bool check_command_line(const std::vector<std::string>& arguments);

}  // namespace tessera
