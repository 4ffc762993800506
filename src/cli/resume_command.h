// The command that resumes an interrupted training run.
#pragma once

#include <string>
#include <vector>

#include "comm/world.h"

namespace tessera {

// The command line this process was started with.
std::vector<std::string> own_command_line();

// The same command line as a shell takes it, with --resume_from_checkpoint auto among its flags.
std::string resume_command(std::vector<std::string> command_line);

// For the user of this job: its command, that of `tessera launch` where its agent started this process, or
// words where another launcher did.
std::string describe_resuming(const World& world);

}  // namespace tessera
