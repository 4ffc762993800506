// The nodes of a job meet before every start of its ranks: who is there, in which order.
#pragma once

#include "comm/store_wire.h"
#include "launch/agent.h"
#include "launch/agent_signals.h"
#include "launch/launch_plan.h"

namespace tessera {

// What this node is in a start, and the restarts before it.
using NodeSeat = wire::Assignment;

struct MeetingResult {
  NodeSeat seat;
  int stop_signal = 0;       // nonzero: this signal came instead
  bool job_is_over = false;  // it has ended well, and does not need this node
};

// `former` is the start before; its restart_count is -1 before the first. `num_failures` is what counts until
// now. Error when this node is refused, too few come in time, or node 0 is gone.
MeetingResult meet_nodes(const LaunchPlan& plan, const NodeSeat& former, int num_failures,
                         AgentSignals* signals);

// On node 0, when there is no other start: tells the nodes that wait for it (`num_nodes` of them; for some
// seconds at most) how the job has ended.
void tell_of_the_end(const LaunchPlan& plan, const LaunchResult& end, int num_nodes, AgentSignals* signals);

}  // namespace tessera
