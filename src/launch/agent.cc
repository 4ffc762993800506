#include "launch/agent.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/log.h"
#include "base/text.h"
#include "comm/socket/address.h"
#include "launch/job/agent_signals.h"
#include "launch/meeting/node_meeting.h"
#include "launch/ranks/rank_files.h"
#include "launch/ranks/rank_group.h"
#include "launch/ranks/snapshot_memory.h"
#include "launch/restart_policy.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;

// The plan of one start.
LaunchPlan seated(const LaunchPlan& plan, const wire::Assignment& seat) {
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
    log_warning("{}; restart, not counted: a disruption", describe_end(end));
  }
}

// A program that does not report progress is assumed to have made some if it has run for a while.
bool has_progressed(const LaunchResult& end, const LaunchPlan& plan, Clock::duration took) {
  constexpr std::chrono::minutes kAWhile(1);
  return end.has_progressed || (!plan.marks_progress() && took >= kAWhile);
}

// The agent's result under --under_controller. The controller looks at pods about once a second, and acts on
// the first that has ended: an agent that waits lets it see the cause first.
LaunchResult end_for_controller(LaunchResult end, AgentSignals* signals) {
  constexpr std::chrono::seconds kCauseFirst(3);
  constexpr std::chrono::milliseconds kLook(100);
  if (end.rank_signal != 0) {
    end.exit_code = 128 + end.rank_signal;
  } else if (end.exit_code == static_cast<int>(ExitCode::kTryAgain)) {
    const Clock::time_point until = Clock::now() + kCauseFirst;
    while (Clock::now() < until && signals->take_stop() == 0) std::this_thread::sleep_for(kLook);
  }
  return end;
}

}  // namespace

LaunchResult run_agent(const LaunchPlan& given_plan) {
  AgentSignals signals;
  LaunchPlan plan = given_plan;
  plan.launch_id = random_id();
  // Looked up only once: between two starts the other nodes wait for this one.
  if (plan.serves_store()) {
    plan.bind_addresses = listen_addresses(plan.master_addr, std::min(plan.rendezvous_timeout, kOwnNameTime));
  }
  const std::filesystem::path log_folder = make_log_folder(plan);
  if (plan.log_dir.empty() && !log_folder.empty())
    log_info("log files of the ranks are in {}", log_folder.string());
  const SnapshotMemory snapshots(may_restart(plan) ? plan.local_world_size : 0);
  wire::Assignment seat = {.restart_count = -1, .node_rank = plan.wanted_rank, .num_nodes = plan.max_nodes};
  int num_idle_starts = 0;  // consecutive uncounted restarts without progress
  for (;;) {
    if (plan.has_meetings()) {
      const MeetingResult met = meet_nodes(plan, seat, seat.num_failures, &signals);
      if (met.stop_signal != 0) return {.signal = met.stop_signal, .error = {}};
      if (met.job_is_over) return {};
      seat = met.seat;
      if (plan.is_elastic() || seat.restart_count > 0) {
        log_info("start {}: this is node {} of {}", seat.restart_count, seat.node_rank, seat.num_nodes);
      }
    } else {
      ++seat.restart_count;
    }
    const LaunchPlan start = seated(plan, seat);
    const Clock::time_point begin = Clock::now();
    LaunchResult end = RankGroup(start, log_folder, seat.restart_count, snapshots, &signals).run();
    // Known only to node 0; the others follow its decision when they meet.
    const bool is_idle = seat.node_rank == 0 && !has_progressed(end, start, Clock::now() - begin);
    if (!is_idle) num_idle_starts = 0;
    const Restart restart = restart_after(end, plan, seat.num_failures, num_idle_starts + (is_idle ? 1 : 0));
    if (restart == Restart::kNo) {
      const bool gives_up = restart_after(end, plan, seat.num_failures, 0) == Restart::kFree;
      if (gives_up) {
        end.error += fmt::format("; not started again: {} in a row did not finish a step",
                                 count_of(num_idle_starts + 1, "start"));
      }
      const int num_nodes = end.num_waiting_nodes + (gives_up ? start.num_nodes - 1 : 0);
      if (seat.node_rank == 0 && num_nodes > 0) tell_of_the_end(plan, end, num_nodes, &signals);
      return plan.under_controller ? end_for_controller(std::move(end), &signals) : end;
    }
    log_restart(end, restart, seat.num_failures, plan.max_restarts);
    if (restart == Restart::kCounted) ++seat.num_failures;
    if (restart == Restart::kFree && is_idle) ++num_idle_starts;
  }
}

}  // namespace tessera
