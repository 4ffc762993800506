// The subcommands of the program.
#pragma once

#include "cli/command.h"

namespace tessera {

// All of them, in the order in which help lists them.
Commands commands();
// The one with the longest name that the words begin with, and the number of words in it; nullptr if there is
// none.
Command* find_command(const Commands& all, const std::vector<std::string>& words, size_t* num_words);

}  // namespace tessera
