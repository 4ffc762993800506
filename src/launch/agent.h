// The agent of a node: starts its ranks, waits for them, forwards signals and output, and ends all of them
// when one fails.
#pragma once

#include <string>

#include "launch/launch_plan.h"

namespace tessera {

struct LaunchResult {
  int exit_code = 0;
  int signal = 0;       // nonzero: the agent must end by this signal, as its ranks did
  int rank_signal = 0;  // nonzero: what killed the rank of this node that failed first
  std::string error;    // one line naming the rank and host that failed first; "" = no error, or none to show
  // About one start, to decide whether there is another:
  bool was_told_to_end = false;  // this agent received a signal
  bool is_disruption = false;    // a node, network or process vanished; not the program's fault
  bool has_lost_store = false;   // the agent of node 0 has ended or cannot be reached
  // Known only to node 0:
  bool has_progressed = false;  // a training step was finished
  int num_waiting_nodes = 0;    // waiting to take part in the next start
};

// Runs the ranks of this node to completion, restarting them as needed. Call it while the process has a
// single thread, from a thread that outlives the ranks: they are killed when it ends. Error if ranks cannot
// be started.
LaunchResult run_agent(const LaunchPlan& plan);

}  // namespace tessera
