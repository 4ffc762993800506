#include "launch/node_meeting.h"

#include <poll.h>
#include <unistd.h>

#include <csignal>

#include "comm/address.h"
#include "comm/meeting_client.h"
#include "comm/meeting_server.h"

namespace tessera {
namespace {

using std::chrono::milliseconds;

// How long more nodes than the fewest are waited for: at the first start, as torchrun does, and when those
// that are there have work to go on with.
constexpr milliseconds kFirstCall{30'000};
constexpr milliseconds kCallAtRestart{3'000};
constexpr milliseconds kLook{20};

// Waits for the meeting's result or a signal.
template <typename Meeting>
MeetingResult attend(Meeting& meeting, AgentSignals* signals) {
  for (;;) {
    if (const auto seat = meeting.wait(kLook)) return {.seat = *seat};
    for (const int number : signals->take()) {
      if (number == SIGTSTP) kill(getpid(), SIGSTOP);
      if (number != SIGTSTP && number != SIGCHLD) return {.seat = {}, .stop_signal = number};
    }
  }
}

}  // namespace

MeetingResult meet_nodes(const LaunchPlan& plan, const NodeSeat& former, int num_failures,
                         AgentSignals* signals) {
  StoreOptions timing;
  timing.rendezvous_timeout = plan.rendezvous_timeout;
  set_heartbeat_timeout(&timing, plan.heartbeat_timeout);
  const bool is_first = former.restart_count < 0;
  if (plan.wanted_rank == 0) {
    MeetingServer meeting(
        {.bind_addresses = listen_addresses(plan.master_addr),
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
                         .request = {.run_id = plan.run_id,
                                     .min_nodes = plan.min_nodes,
                                     .max_nodes = plan.max_nodes,
                                     .local_world_size = plan.local_world_size,
                                     .wanted_rank = plan.wanted_rank,
                                     .former_rank = is_first ? -1 : former.node_rank,
                                     .host = plan.host,
                                     .pid = getpid()},
                         .has_met_before = !is_first,
                         .timing = timing});
  return attend(meeting, signals);
}

}  // namespace tessera
