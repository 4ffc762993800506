#include "comm/network/network_group.h"

#include <algorithm>
#include <exception>

#include "base/error.h"
#include "base/log.h"
#include "comm/network/fabric/fabric_choice.h"
#include "comm/network/fabric/fabric_link.h"
#include "comm/network/fabric/fabric_mesh.h"
#include "comm/network/link/network_mesh.h"
#include "comm/network/link/tcp_link.h"
#include "comm/network/network_lane.h"
#include "comm/ranks/world.h"

namespace tessera {
namespace {

Members describe_members(std::vector<int> ranks, int my_rank, const Rendezvous* rendezvous) {
  const auto mine = std::ranges::find(ranks, my_rank);
  TESSERA_CHECK(mine != ranks.end(), "rank {} is not a member of its group", my_rank);
  Members members;
  members.index = static_cast<int>(mine - ranks.begin());
  for (const int rank : ranks) {
    members.names.push_back(rendezvous == nullptr ? fmt::format("rank {}", rank)
                                                  : describe_rank(rank, rendezvous->host(rank)));
  }
  members.ranks = std::move(ranks);
  return members;
}

// One link for every lane.
std::vector<std::unique_ptr<LaneLink>> connect(const Members& members, const std::string& name,
                                               const NetworkOptions& options, Rendezvous& rendezvous,
                                               FailureDetector& failures) {
  Mesh mesh = connect_mesh(members, name, options, rendezvous, failures);
  if (!options.fabric.is_tcp())
    return connect_fabric(members, name, options, rendezvous, failures, std::move(mesh));
  std::vector<std::unique_ptr<LaneLink>> links;
  for (std::vector<UniqueFd>& sockets : mesh.sockets)
    links.push_back(std::make_unique<TcpLink>(std::move(sockets)));
  return links;
}

}  // namespace

NetworkGroup::NetworkGroup(std::string name, std::vector<int> ranks, int my_rank, Rendezvous* rendezvous,
                           const NetworkOptions& options, FailureDetector& failures)
    : timeout_(options.timeout),
      position_(options.position),
      failures_(failures),
      members_(describe_members(std::move(ranks), my_rank, rendezvous)) {
  for (size_t i = 0; i < counts_.size(); ++i) counts_[i].operation = kCollectives[i].name;
  if (size() == 1) return;
  TESSERA_CHECK(options.connections >= 1 && rendezvous != nullptr, "{} connections", options.connections);
  NetworkOptions chosen = options;
  chosen.fabric = fabric_ = choose_fabric(options.fabric);
  std::vector<std::unique_ptr<LaneLink>> links = connect(members_, name, chosen, *rendezvous, failures);
  ring_.resize(kMaxRunning);
  for (NetworkOperation& operation : ring_) {
    operation.parts.reserve(members_.ranks.size());
    operation.received_parts.reserve(members_.ranks.size());
  }
  for (size_t i = 0; i < links.size(); ++i) {
    idle_interval_ = std::max(idle_interval_, links[i]->idle_interval());
    lanes_.push_back(std::make_unique<Lane>(static_cast<int>(i), static_cast<int>(links.size()), members_,
                                            std::move(links[i]), failures_));
  }
  start_workers();
}

void NetworkGroup::release_buffers() noexcept {
  try {
    if (std::uncaught_exceptions() == 0) wait_for_all();
  } catch (const Error& error) {
    log_debug("transfers between nodes at the end: {}", error.what());
  }
  abandon();
}

NetworkGroup::Ticket NetworkGroup::issue(Collective collective, std::span<std::byte> buffer,
                                         std::span<const Part> parts, const OpLabel& label,
                                         const GradientFeedback& feedback) {
  check_parts(parts, buffer.size() / static_cast<size_t>(kind_of(collective).element_bytes));
  return issue(collective, buffer.data(), parts, -1, label, feedback);
}

NetworkGroup::Ticket NetworkGroup::all_to_all(std::span<const std::byte> sent,
                                              std::span<const Part> sent_parts, std::span<std::byte> received,
                                              std::span<const Part> received_parts, const OpLabel& label) {
  check_parts(sent_parts, sent.size());
  check_parts(received_parts, received.size());
  // Nothing is written to what is sent.
  return issue(Collective::kAllToAll, const_cast<std::byte*>(sent.data()), sent_parts, -1, label, {},
               received.data(), received_parts);
}

NetworkGroup::Ticket NetworkGroup::broadcast(std::span<std::byte> buffer, int root, const OpLabel& label) {
  TESSERA_CHECK(root >= 0 && root < size(), "root {} of {} members", root, size());
  const Part whole{0, static_cast<int64_t>(buffer.size())};
  return issue(Collective::kBroadcast, buffer.data(), {&whole, 1}, root, label);
}

void NetworkGroup::check_parts(std::span<const Part> parts, size_t num_elements) const {
  TESSERA_CHECK(static_cast<int>(parts.size()) == size(), "{} parts for {} members", parts.size(), size());
  for (const Part& part : parts) {
    TESSERA_CHECK(part.begin >= 0 && part.begin <= part.end && part.end <= static_cast<int64_t>(num_elements),
                  "part [{}, {}) of {} elements", part.begin, part.end, num_elements);
  }
}

int64_t NetworkGroup::buffer_bytes(int num_members, int connections, const Fabric& fabric) {
  if (num_members == 1) return 0;
  const bool is_tcp = fabric.is_tcp();
  const int64_t of_lane = Lane::buffer_bytes(num_members, is_tcp ? 1 : FabricLink::kWindow);
  return connections * (of_lane + (is_tcp ? 0 : FabricLink::buffer_bytes(num_members, fabric.provider)));
}

}  // namespace tessera
