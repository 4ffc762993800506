// The program behind main(): finds the subcommand, sets its flags, runs it.
#pragma once

#include <string>
#include <vector>

#include "cli/program/commands.h"

namespace tessera {

// Arguments without the program's name; `all` are the commands it has. Throws Error.
void run_program(const std::vector<std::string>& arguments, const Commands& all = commands());

// Does so as a program: what ends a run in an error is one line and an exit code, which it returns.
int program_main(const std::vector<std::string>& arguments, const Commands& all);

// Throws the Error of a wrong command, flag, value or configuration file without running the command. True if
// the command is to be quiet.
bool check_command_line(const std::vector<std::string>& arguments);

}  // namespace tessera
