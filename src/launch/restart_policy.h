// Whether the ranks restart after they have ended.
#pragma once

#include "launch/job/launch_plan.h"

namespace tessera {

enum class Restart {
  kNo,
  kCounted,  // counts against --max_restarts
  kFree,     // after a disruption, which says nothing about the program
};

// Whether the ranks may restart at all.
bool may_restart(const LaunchPlan& plan);

// All agents of a job reach the same decision: they have the same flags and the same verdict.
//
//     end of a start                                restart?
//     success, or a signal to this agent            no
//     exit codes that would recur                   no
//     the agent of node 0 is gone                   no (75): the meeting has no host
//     SIGTERM to another node's agent               free, if may_restart()
//     a node, a network or peers gone or silent     likewise free, --max_idle_restarts in a row
//     a rank killed, exit codes that may not recur  counted, while --max_restarts allows
//
// `num_idle_starts`: consecutive starts without progress, including this one; node 0 counts them, others pass
// 0.
Restart restart_after(const LaunchResult& end, const LaunchPlan& plan, int num_failures, int num_idle_starts);

}  // namespace tessera
