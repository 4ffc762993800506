// The agent of a node: starts its ranks, waits for them, forwards signals and output, and ends all of them
// when one fails.
#pragma once

#include "launch/job/launch_plan.h"

namespace tessera {

// Runs the ranks of this node to completion, restarting them as needed. Call it while the process has a
// single thread, from a thread that outlives the ranks: they are killed when it ends. Error if ranks cannot
// be started.
LaunchResult run_agent(const LaunchPlan& plan);

}  // namespace tessera
