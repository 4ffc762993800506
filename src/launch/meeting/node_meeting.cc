#include "launch/meeting/node_meeting.h"

#include <poll.h>
#include <unistd.h>

#include <csignal>

#include "base/error.h"
#include "base/log.h"
#include "launch/meeting/meeting_client.h"
#include "launch/meeting/meeting_farewell.h"
#include "launch/meeting/meeting_server.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;

// The time to wait for more than min_nodes: at the first start, as torchrun does, and at a restart, when the
// nodes present could be working.
constexpr milliseconds kFirstCall{30'000};
constexpr milliseconds kCallAtRestart{3'000};
constexpr milliseconds kLook{20};
// Waiting nodes ask every 0.2 s; nodes of the last start ask only after their ranks have ended.
constexpr milliseconds kFarewellTime{3'000};

// Waits for the meeting's result or a signal.
template <typename Meeting>
MeetingResult attend(Meeting& meeting, AgentSignals* signals) {
  for (;;) {
    if (const auto seat = meeting.wait(kLook)) return {.seat = *seat};
    if (const int number = signals->take_stop()) return {.seat = {}, .stop_signal = number};
  }
}

}  // namespace

MeetingResult meet_nodes(const LaunchPlan& plan, const wire::Assignment& former, int num_failures,
                         AgentSignals* signals) {
  StoreOptions timing;
  timing.rendezvous_timeout = plan.rendezvous_timeout;
  set_heartbeat_timeout(&timing, plan.heartbeat_timeout);
  const bool is_first = former.restart_count < 0;
  if (plan.wanted_rank == 0) {
    MeetingServer meeting(
        {.bind_addresses = plan.bind_addresses,
         .port = plan.master_port,
         .secret = plan.secret,
         .run_id = plan.run_id,
         .host = plan.host,
         .terms = {.min_nodes = plan.min_nodes,
                   .max_nodes = plan.max_nodes,
                   .last_call = plan.last_call.value_or(is_first ? kFirstCall : kCallAtRestart),
                   .timeout = plan.rendezvous_timeout},
         .local_world_size = plan.local_world_size,
         .restart_count = former.restart_count + 1,
         .num_failures = num_failures,
         .timing = timing});
    return attend(meeting, signals);
  }
  MeetingClient meeting({.address = plan.master_addr,
                         .port = plan.master_port,
                         .secret = plan.secret,
                         .run_id = plan.run_id,
                         .request = {.min_nodes = plan.min_nodes,
                                     .max_nodes = plan.max_nodes,
                                     .local_world_size = plan.local_world_size,
                                     .wanted_rank = plan.wanted_rank,
                                     .former_rank = is_first ? -1 : former.node_rank,
                                     .host = plan.host,
                                     .pid = getpid()},
                         .has_met_before = !is_first,
                         .timing = timing});
  try {
    return attend(meeting, signals);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDone) throw;
    log_info("{}", error.what());
    return {.seat = {}, .job_is_over = true};
  }
}

void tell_of_the_end(const LaunchPlan& plan, const LaunchResult& end, int num_nodes, AgentSignals* signals) {
  wire::Refusal message = {.code = ExitCode::kDone, .message = "the job has ended; this node was not needed"};
  if (end.signal != 0) {
    message = {.code = ExitCode::kTryAgain, .message = "the job was told to end"};
  } else if (end.exit_code != 0) {
    message = {.code = static_cast<ExitCode>(end.exit_code), .message = end.error};
  }
  const auto deadline = std::chrono::steady_clock::now() + kFarewellTime;
  try {
    MeetingFarewell farewell({.bind_addresses = plan.bind_addresses,
                              .port = plan.master_port,
                              .secret = plan.secret,
                              .run_id = plan.run_id,
                              .message = message});
    while (std::chrono::steady_clock::now() < deadline && !farewell.wait_until_told(num_nodes, kLook)) {
      if (signals->take_stop() != 0) return;
    }
  } catch (const Error& error) {
    log_debug("waiting nodes were not told of the end: {}", error.what());  // they will notice it themselves
  }
}

}  // namespace tessera
