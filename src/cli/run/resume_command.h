// The command that resumes an interrupted training run.
#pragma once

#include <string>
#include <vector>

#include "comm/ranks/world.h"

namespace tessera {

// The command line this process was started with.
std::vector<std::string> own_command_line();

// Quotes `command_line` for a shell and adds --resume_from_checkpoint auto to its flags.
std::string resume_command(std::vector<std::string> command_line);

// Tells the user how to resume this job: its command, that of `tessera launch` if its agent started this
// process, or a description if another launcher did.
std::string describe_resuming(const World& world);

}  // namespace tessera
