// The agent of a node: starts its ranks, watches them, passes on signals and output, and ends all of them
// when one fails.
#pragma once

#include <string>

#include "launch/launch_plan.h"

namespace tessera {

struct LaunchResult {
  int exit_code = 0;
  int signal = 0;     // nonzero: the agent shall end by it, as its ranks did
  std::string error;  // one line that names the rank and host that failed first; "" = none, or nothing to say
};

// Runs the ranks of this node to their end, with restarts. Call it while the process has one thread, and from
// the thread that goes on living: ranks are killed when it ends. Error when ranks cannot be started.
LaunchResult run_agent(const LaunchPlan& plan);

}  // namespace tessera
