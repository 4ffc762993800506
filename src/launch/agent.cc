#include "launch/agent.h"

#include "base/log.h"
#include "launch/agent_signals.h"
#include "launch/node_meeting.h"
#include "launch/rank_files.h"
#include "launch/rank_group.h"
#include "launch/restart_policy.h"
#include "launch/snapshot_memory.h"

namespace tessera {
namespace {

// The plan of one start.
LaunchPlan seated(const LaunchPlan& plan, const NodeSeat& seat) {
  LaunchPlan start = plan;
  start.node_rank = seat.node_rank;
  start.num_nodes = seat.num_nodes;
  return start;
}

std::string describe_end(const LaunchResult& end) {
  return end.signal == 0 ? end.error : "a node of the job was told to end";
}

void log_restart(const LaunchResult& end, Restart restart, int num_failures, int max_restarts) {
  if (restart == Restart::kCounted) {
    log_warning("{}; restart {} of {}", describe_end(end), num_failures + 1, max_restarts);
  } else {
    log_warning("{}; restart, which does not count: a disruption", describe_end(end));
  }
}

}  // namespace

LaunchResult run_agent(const LaunchPlan& plan) {
  AgentSignals signals;
  const std::filesystem::path log_folder = make_log_folder(plan);
  if (plan.log_dir.empty() && !log_folder.empty())
    log_info("log files of the ranks: {}", log_folder.string());
  const SnapshotMemory snapshots(may_restart(plan) ? plan.local_world_size : 0);
  NodeSeat seat = {.restart_count = -1, .node_rank = plan.wanted_rank, .num_nodes = plan.max_nodes};
  for (;;) {
    if (plan.has_meetings()) {
      const MeetingResult met = meet_nodes(plan, seat, seat.num_failures, &signals);
      if (met.stop_signal != 0) return {.signal = met.stop_signal, .error = {}};
      seat = met.seat;
      if (plan.is_elastic() || seat.restart_count > 0) {
        log_info("start {}: this is node {} of {}", seat.restart_count, seat.node_rank, seat.num_nodes);
      }
    } else {
      ++seat.restart_count;
    }
    const LaunchPlan start = seated(plan, seat);
    LaunchResult end = RankGroup(start, log_folder, seat.restart_count, snapshots, &signals).run();
    const Restart restart = restart_after(end, plan, seat.num_failures);
    if (restart == Restart::kNo) return end;
    log_restart(end, restart, seat.num_failures, plan.max_restarts);
    if (restart == Restart::kCounted) ++seat.num_failures;
  }
}

}  // namespace tessera
