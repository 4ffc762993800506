// Joining the store, on its side: which members are accepted or missing, and when the job is complete.

#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "base/text.h"
#include "comm/store/store_server_impl.h"

namespace tessera {

using wire::Type;

// Why the member cannot join; nullopt if it can.
std::optional<wire::Refusal> StoreServer::Impl::objection(const wire::JoinRequest& request, MemberId id) {
  const auto refuse = [](const std::string& message) { return wire::Refusal{.message = message}; };
  const std::string who = describe_member(id, request.host);
  if (request.restart_count != options_.restart_count) {
    // An older store is about to be replaced; an older member missed the end of its own start.
    return wire::Refusal{.try_again = request.restart_count > options_.restart_count,
                         .code = ExitCode::kTryAgain,
                         .message = fmt::format("{} belongs to start {} of the job, the store to start {}",
                                                who, request.restart_count, options_.restart_count)};
  }
  if (verdict_.decided()) {
    return wire::Refusal{.code = verdict_.decided()->code,
                         .message = "the job has failed: " + verdict_.decided()->message};
  }
  if (request.world_size != options_.world_size) {
    return refuse(
        fmt::format("{} was started for {}, the store for {}: use the same --nnodes and --nproc_per_node on "
                    "all nodes",
                    who, count_of(request.world_size, "rank"), options_.world_size));
  }
  for (const auto& [other_id, other_number] : seats_) {
    const wire::JoinRequest& other = peers_.at(other_number).who;
    if (other.local_world_size != request.local_world_size) {
      return refuse(fmt::format(
          "{} is on a node with {}, {} on one with {}: all nodes must have the same number of ranks", who,
          count_of(request.local_world_size, "rank"), describe_member(other_id, other.host),
          other.local_world_size));
    }
    if (other.node_rank == request.node_rank && other.host != request.host) {
      return refuse(
          fmt::format("{} and {} both claim to be on node {}: give each node a --node_rank of its own", who,
                      describe_member(other_id, other.host), request.node_rank));
    }
  }
  if (!id.is_agent && (id.index < 0 || id.index >= options_.world_size)) {
    return refuse(
        fmt::format("{} does not exist in a job of {}", who, count_of(options_.world_size, "rank")));
  }
  if (const auto seat = seats_.find(id); seat != seats_.end()) {
    const Peer& holder = peers_.at(seat->second);
    // Allow time to find out whether the other one is gone.
    return wire::Refusal{
        .try_again = may_be_gone(holder),
        .message = fmt::format("{} (process {}) cannot join: {} (process {}) already has this place; is "
                               "--node_rank the same on two nodes, or an earlier start still running?",
                               who, request.pid, describe_member(id, holder.who.host), holder.who.pid)};
  }
  if (formed_ && !id.is_agent) {
    return wire::Refusal{
        .code = ExitCode::kTryAgain,
        .message = who + " comes too late: the job is running, and this rank was in it and has left"};
  }
  return std::nullopt;
}

std::optional<wire::Refusal> StoreServer::Impl::admit(const wire::JobPort::Entrant& entrant) {
  if (entrant.type == Type::kMeet) {
    const wire::MeetRequest request = wire::decode<wire::MeetRequest>(entrant.request);
    waiting_[{request.host, request.pid}] = Clock::now();
    return wire::Refusal{
        .try_again = true,
        .code = ExitCode::kTryAgain,
        .message = fmt::format("the job runs on {} (start {}); this node joins when it starts again",
                               count_of(options_.num_agents + 1, "node"), options_.restart_count)};
  }
  const wire::JoinRequest request = wire::decode<wire::JoinRequest>(entrant.request);
  const MemberId id{.is_agent = request.is_agent,
                    .index = request.is_agent ? request.node_rank : request.rank};
  if (const auto refusal = objection(request, id)) return refusal;
  const uint64_t number = next_number_++;
  Peer& peer = peers_[number];
  peer.channel = entrant.channel;
  peer.id = id;
  peer.who = request;
  peer.channel->set_max_body_bytes(wire::kMaxBodyBytes);
  peer.channel->set_handlers(
      {.message = [this, number](const wire::Header& header,
                                 std::string_view body) { on_message(number, header, body); },
       .closed = [this, number](const wire::Ending& ending) { on_closed(number, ending); }});
  if (const auto local = peer.channel->local_endpoint().address(); !wire::is_loopback(local)) {
    reached_at_ = wire::address_text(local);
  }
  seats_[id] = number;
  if (id.is_agent) {
    agents_seen_.insert(id.index);
    reports_.heard(id.index);
  }
  peer.channel->send(Type::kAccepted, 0, {});
  form_when_complete();
  return std::nullopt;
}

bool StoreServer::Impl::may_be_gone(const Peer& peer) const {
  return peer.quiet > 3 * Duration(options_.timing.heartbeat);
}

void StoreServer::Impl::form_when_complete() {
  if (formed_ || verdict_.decided()) return;
  int joined = 0;
  for (const auto& [id, number] : seats_) {
    // A member that is already dead would fail the job as soon as it completed it.
    if (!id.is_agent && !may_be_gone(peers_.at(number))) ++joined;
  }
  if (joined == options_.world_size) form();
}

void StoreServer::Impl::form() {
  formed_ = true;
  for (const auto& [id, number] : seats_) {
    if (id.is_agent) continue;
    const wire::JoinRequest& who = peers_.at(number).who;
    // The address at which others reached the store also reaches the ranks on its machine.
    const bool correct = who.address_is_guess && !reached_at_.empty();
    ranks_.push_back(
        {.node_rank = who.node_rank, .host = who.host, .address = correct ? reached_at_ : who.address});
  }
  const std::string body = wire::encode(ranks_);
  for (const auto& [id, number] : seats_) peers_.at(number).channel->send(Type::kFormed, 0, body);
}

void StoreServer::Impl::find_missing_agents(Duration elapsed) {
  if (agents_are_there_) return;
  waited_for_agents_ += elapsed;
  int missing = 0;
  for (int node = options_.num_agents; node > 0; --node) {
    if (!agents_seen_.contains(node)) missing = node;
  }
  agents_are_there_ = missing == 0;
  if (agents_are_there_ || waited_for_agents_ < Duration(options_.time_for_agents)) return;
  verdict_.silent(
      {.is_agent = true, .index = missing},
      {.message = fmt::format("the agent of node {} has not come within {:.1f} s after the nodes met",
                              missing, Duration(options_.time_for_agents).count()),
       .is_disruption = true});
}

// "3 of 8 ranks missing: 2-3, 6; joined: 0-1 (host a), 4-5, 7 (host b); refused: rank 2 on host c ..."
std::string StoreServer::Impl::describe_missing() const {
  std::vector<int> missing;
  std::map<std::string, std::vector<int>> joined;
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const auto seat = seats_.find({.index = rank});
    if (seat == seats_.end()) {
      missing.push_back(rank);
    } else {
      joined[peers_.at(seat->second).who.host].push_back(rank);
    }
  }
  if (formed_) return {};
  if (missing.empty()) {
    return fmt::format("all {} have joined, but not all of them can be heard",
                       count_of(options_.world_size, "rank"));
  }
  std::string text = fmt::format("{} of {} missing: {}", missing.size(),
                                 count_of(options_.world_size, "rank"), format_ranks(missing));
  if (!joined.empty()) text += "; joined:";
  std::string_view separator = " ";
  for (const auto& [host, ranks] : joined) {
    text += fmt::format("{}{} (host {})", separator, format_ranks(ranks), host);
    separator = ", ";
  }
  if (!job_port_.last_refusal().empty()) text += "; refused: " + job_port_.last_refusal();
  return text;
}

}  // namespace tessera
