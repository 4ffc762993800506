// Help on the terminal and the flag reference in docs/flags.md, both from the commands' flag tables.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.h"

namespace tessera {

// Breaks text at spaces into lines of at most `width` columns, each indented by `indent` spaces; "\n" starts
// a new line.
std::string wrap_text(std::string_view text, int64_t indent, int64_t width);

// `tessera --help`.
std::string program_help(const std::vector<std::unique_ptr<Command>>& all, int64_t width);
// `tessera COMMAND --help`; declares the command's flags.
std::string command_help(Command* command, int64_t width);
// The commands whose name has further words after this one: "bench" has "bench gemm" and others.
std::vector<const Command*> commands_of_group(const std::vector<std::unique_ptr<Command>>& all,
                                              const std::string& group);
// `tessera GROUP --help`: lists those commands.
std::string group_help(const std::vector<std::unique_ptr<Command>>& all, const std::string& group,
                       int64_t width);
// docs/flags.md.
std::string flag_reference(const std::vector<std::unique_ptr<Command>>& all);

}  // namespace tessera
