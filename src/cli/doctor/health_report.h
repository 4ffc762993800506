// Shows the results of the checks that `tessera doctor` runs.
#pragma once

#include <string>
#include <vector>

#include "cluster/check.h"

namespace tessera {

// A table of at most 80 columns on standard output.
void print_checks(const std::vector<Check>& checks, const std::vector<std::string>& ignored = {});

// Logs one line for each failed check that is not ignored, and ends the command with the exit code of
// health_of() unless that is 0.
void end_with_health(const std::vector<Check>& checks, const std::vector<std::string>& ignored = {});

}  // namespace tessera
