// The nodes of a job meet before every start of its ranks to agree on who takes part, and in which order.
#pragma once

#include "comm/store/store_wire.h"
#include "launch/job/agent_signals.h"
#include "launch/job/launch_plan.h"

namespace tessera {

struct MeetingResult {
  wire::Assignment seat;
  int stop_signal = 0;       // nonzero: this signal arrived first
  bool job_is_over = false;  // it has ended successfully without needing this node
};

// `former` is the seat in the previous start; its restart_count is -1 before the first. `num_failures` is the
// number of counted failures so far. Error if this node is refused, too few nodes come in time, or node 0 is
// gone.
MeetingResult meet_nodes(const LaunchPlan& plan, const wire::Assignment& former, int num_failures,
                         AgentSignals* signals);

// On node 0, if there is no further start: tells the `num_nodes` nodes waiting for one how the job has ended.
// Takes a few seconds at most.
void tell_of_the_end(const LaunchPlan& plan, const LaunchResult& end, int num_nodes, AgentSignals* signals);

}  // namespace tessera
