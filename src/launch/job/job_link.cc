#include "launch/job/job_link.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "base/unique_fd.h"
#include "platform/background_thread.h"

namespace tessera {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr int kTorchrunPort = 29500;
constexpr int kLastPort = 65535;
// Limit of one attempt to reach the store; between attempts the agent may end.
constexpr std::chrono::milliseconds kJoinTry{1000};
// Node 0 expects every agent that took part in the meeting: one whose ranks end at once still has to join and
// leave in order.
constexpr std::chrono::seconds kLateJoin{5};
// Time for node 0 to collect the reports of all nodes and write one.
constexpr milliseconds kReportTime{5000};

// On loopback; the system does not give it to others soon.
int find_free_port() {
  const UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  const auto at = reinterpret_cast<sockaddr*>(&address);
  if (!socket || bind(socket.get(), at, size) != 0 || getsockname(socket.get(), at, &size) != 0)
    fail_errno(ExitCode::kIoError, errno, "a free port for MASTER_PORT");
  return ntohs(address.sin_port);
}

}  // namespace

JobLink::JobLink(const LaunchPlan& plan, int restart_count)
    : plan_(plan), joining_ends_((Clock::now() + StoreServerOptions{}.time_for_agents).time_since_epoch()) {
  if (!plan.is_tessera && plan.master_port == 0) free_port_ = find_free_port();
  if (plan.world_size() == 1 && !plan.has_meetings()) return;
  if (plan.serves_store()) {
    StoreServerOptions options;
    options.bind_addresses = plan.bind_addresses;
    options.port = plan.master_port;
    options.secret = plan.secret;
    options.run_id = plan.run_id;
    options.world_size = plan.world_size();
    options.restart_count = restart_count;
    options.num_agents = plan.num_nodes - 1;
    options.timing.rendezvous_timeout = plan.rendezvous_timeout;
    set_heartbeat_timeout(&options.timing, plan.heartbeat_timeout);
    server_ = StoreServer::start(options);
    return;
  }
  World world;
  world.rank = plan.first_rank();
  world.world_size = plan.world_size();
  world.local_world_size = plan.local_world_size;
  world.node_rank = plan.node_rank;
  world.num_nodes = plan.num_nodes;
  world.master_addr = plan.master_addr;
  world.master_port = plan.master_port;
  world.agent_has_store = true;
  world.run_id = plan.run_id;
  world.secret = plan.secret;
  world.restart_count = restart_count;
  world.host = plan.host;
  world.source = "tessera launch";
  joining_ = start_background_thread([this, world] { join_as_agent(world); });
}

JobLink::~JobLink() {
  joining_ends_ = std::min(joining_ends_.load(), (Clock::now() + kLateJoin).time_since_epoch());
  if (joining_.joinable()) joining_.join();
}

int JobLink::store_port() const {
  if (server_) return server_->port();
  return plan_.master_port == 0 ? kTorchrunPort : plan_.master_port;
}

int JobLink::master_port() const {
  if (plan_.is_tessera) return store_port();
  if (plan_.master_port == 0) return free_port_;
  return plan_.master_port == kLastPort ? kLastPort - 1 : plan_.master_port + 1;
}

void JobLink::join_as_agent(const World& world) {
  StoreOptions options;
  options.rendezvous_timeout = std::min(kJoinTry, plan_.rendezvous_timeout);
  set_heartbeat_timeout(&options, plan_.heartbeat_timeout);
  std::string problem;
  while (Clock::now().time_since_epoch() < joining_ends_.load()) {
    try {
      std::shared_ptr<StoreClient> client = StoreClient::join_as_agent(world, options);
      const std::lock_guard lock(mutex_);
      if (unreported_) client->report(*unreported_);
      client_ = std::move(client);
      return;
    } catch (const RefusedError& refusal) {
      // The start has already failed. Node 0 knows why, and whether there is another.
      const std::lock_guard lock(mutex_);
      kept_out_ = Failure{.message = refusal.what(), .code = refusal.code(), .is_disruption = true};
      return;
    } catch (const std::exception& error) {
      problem = error.what();
      log_debug("the agent has not joined the job: {}", problem);
    }
  }
  const std::lock_guard lock(mutex_);
  kept_out_ = Failure{
      .message = fmt::format("the agent of node 0 cannot be reached after the nodes met: {}", problem),
      .is_disruption = true};
  is_unreachable_ = true;
}

void JobLink::report(const Failure& failure) {
  if (server_) server_->report(failure);
  const std::lock_guard lock(mutex_);
  try {
    if (client_) client_->report(failure);
  } catch (const Error& error) {
    log_debug("the store was not told of a failure: {}", error.what());
  }
  if (!client_) unreported_ = failure;
}

std::optional<Failure> JobLink::failure() {
  if (server_) return server_->failure();
  const std::lock_guard lock(mutex_);
  return client_ ? client_->failures().failure() : kept_out_;
}

bool JobLink::has_lost_store() {
  const std::lock_guard lock(mutex_);
  return is_unreachable_ || (client_ && client_->has_lost_store());
}

void JobLink::hand_in(const std::string& node_report) {
  std::shared_ptr<StoreClient> client;
  {
    const std::lock_guard lock(mutex_);
    client = client_;
  }
  if (!client) return;
  handed_in_ = std::async(std::launch::async,
                          [client, node_report] { return client->hand_in(node_report, kReportTime); });
}

std::map<int, std::string> JobLink::node_reports(milliseconds timeout) {
  return server_ ? server_->node_reports(timeout) : std::map<int, std::string>();
}

void JobLink::tell_report_place(const std::string& place) {
  if (server_) server_->answer_node_reports(place);
}

std::optional<std::string> JobLink::report_place() {
  return handed_in_.valid() ? handed_in_.get() : std::nullopt;
}

std::optional<double> JobLink::silence_s(int node) {
  return server_ ? server_->silence_of_agent(node) : std::nullopt;
}

bool JobLink::is_needed() {
  return server_ && plan_.num_nodes > 1 && !server_->failure() && !server_->present().empty();
}

}  // namespace tessera
