// Help on the terminal and the flag reference in docs/flags.md, both from the commands' flag tables.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"

namespace tessera {

// The parts of a flag's entry.
std::string flag_left_side(const Flag& flag);    // "--max_steps N"
std::string choices_sentence(const Flag& flag);  // " One of a, b, c." if the left side has no room for them
std::string flag_remarks(const Flag& flag);      // "(default 3; also --epochs)" or ""
// The flags that are listed and have this status.
std::vector<const Flag*> with_status(const FlagTable& table, FlagStatus status);

// `tessera --help`.
std::string program_help(const Commands& all, int64_t width);
// `tessera COMMAND --help`; declares the command's flags.
std::string command_help(Command* command, int64_t width);
// The commands whose name has further words after this one: "bench" has "bench gemm" and others.
std::vector<Command*> commands_of_group(const Commands& all, const std::string& group);
// `tessera GROUP --help`: lists those commands.
std::string group_help(const Commands& all, const std::string& group, int64_t width);
// docs/flags.md.
std::string flag_reference(const Commands& all);

}  // namespace tessera
