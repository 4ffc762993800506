// The nodes of a job meet before every start of its ranks: who is there, in which order.
#pragma once

#include "comm/store_wire.h"
#include "launch/agent_signals.h"
#include "launch/launch_plan.h"

namespace tessera {

// What this node is in a start, and the restarts before it.
using NodeSeat = wire::Assignment;

struct MeetingResult {
  NodeSeat seat;
  int stop_signal = 0;  // nonzero: this signal came instead
};

// `former` is the start before; its restart_count is -1 before the first. `num_failures` is what counts until
// now. Error when this node is refused, too few come in time, or node 0 is gone.
MeetingResult meet_nodes(const LaunchPlan& plan, const NodeSeat& former, int num_failures,
                         AgentSignals* signals);

}  // namespace tessera
