// Command-line arguments into a FlagTable.
//
// --some-flag and --some_flag are the same. A value follows as `--flag value` or `--flag=value`; a list takes
// several or is repeated; of a repeated single value the last counts. Booleans are `--flag`, `--flag true`,
// `--flag=false` or `--no_flag`. `--` ends the flags. A flag may take a lone argument by its ending.
#pragma once

#include <string>
#include <vector>

#include "base/flags.h"

namespace tessera {

enum class ParseOutcome { kRun, kHelpWanted };

// Sets every flag given. Errors (kUsage) name what was given and the flag that was probably meant; unknown
// flags and wrong values are reported together. With a
// `rest_flag`, flags end at the first argument that is neither one nor the value of one; this flag takes all
// that follows, "--" and flags of others included.
ParseOutcome parse_flags(const std::vector<std::string>& arguments, FlagTable* table,
                         const std::string& rest_flag = {});

// kUsage naming the required flags that were not set, on the command line or elsewhere.
void check_required_flags(const FlagTable& table);

}  // namespace tessera
