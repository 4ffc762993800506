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
  // Of one start, for whether there is another:
  bool was_told_to_end = false;  // a signal has reached this agent
  bool is_disruption = false;    // nodes, networks or processes that vanished, not what the program did
  bool has_lost_store = false;   // the agent of node 0 has ended or cannot be reached
  // Known to node 0:
  bool has_progressed = false;  // it has got on: a training step was finished, or it ran for long
  int num_waiting_nodes = 0;    // that would take part in the next start
};

// Runs the ranks of this node to their end, with restarts. Call it while the process has one thread, and from
// the thread that goes on living: ranks are killed when it ends. Error when ranks cannot be started.
LaunchResult run_agent(const LaunchPlan& plan);

}  // namespace tessera
