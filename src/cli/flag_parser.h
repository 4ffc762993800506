// Parses command-line arguments into a FlagTable.
//
// --some-flag and --some_flag are the same. A value follows as `--flag value` or `--flag=value`; a list takes
// several or is repeated; if a single value is repeated, the last one counts. Booleans are `--flag`, `--flag
// true`, `--flag=false` or `--no_flag`. `--` ends the flags. A flag may claim a bare argument by its file
// name ending.
#pragma once

#include <limits>
#include <string>
#include <vector>

#include "base/flags.h"

namespace tessera {

enum class ParseOutcome { kRun, kHelpWanted };

// Sets every flag given. Errors (kUsage) name what was given and the flag that was probably meant; unknown
// flags and wrong values are reported together. With a `rest_flag`, flags end at the first argument that is
// neither a flag nor a flag's value; `rest_flag` takes everything from there on, including "--" and another
// command's flags.
ParseOutcome parse_flags(const std::vector<std::string>& arguments, FlagTable* table,
                         const std::string& rest_flag = {});

// Makes the flag refuse values outside [low, high] (kUsage).
void limit_flag(Flag& flag, double low, double high = std::numeric_limits<double>::infinity());

// "15m|60m|...": the named shapes, as the value of a flag.
std::string preset_value_name();

// Error(kUsage) that names the required flags set neither on the command line nor elsewhere, or to ''.
void check_required_flags(const FlagTable& table);

}  // namespace tessera
