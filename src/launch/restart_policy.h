// Whether the ranks start again after they have ended.
#pragma once

#include "launch/agent.h"
#include "launch/launch_plan.h"

namespace tessera {

enum class Restart {
  kNo,
  kCounted,  // one of --max_restarts
  kFree,     // after a disruption: it says nothing about the program
};

// A start that fails is not always the end.
bool may_restart(const LaunchPlan& plan);

// All agents of a job come to the same answer: they have the same flags and the same verdict.
//
//     end of a start                                again?
//     in good order, or by a signal to this agent   no
//     exit codes that would repeat themselves       no
//     the agent of node 0 is gone                   no (75): nobody holds the meeting
//     SIGTERM to another node's agent               free, if may_restart()
//     a node, a network or peers gone or silent     free in the same way, --max_idle_restarts in a row
//     a rank killed, exit codes that leave hope     counted, as long as --max_restarts allows
//
// `num_idle_starts` in a row have got nowhere, this one included; node 0 counts them, others pass 0.
Restart restart_after(const LaunchResult& end, const LaunchPlan& plan, int num_failures, int num_idle_starts);

}  // namespace tessera
