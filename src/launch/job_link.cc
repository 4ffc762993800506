#include "launch/job_link.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace tessera {
namespace {

constexpr int kTorchrunPort = 29500;
// One try to reach the store; between tries the agent may end.
constexpr std::chrono::milliseconds kJoinTry{1000};

bool is_loopback_name(const std::string& host) { return host == "localhost" || host == "127.0.0.1"; }

}  // namespace

JobLink::JobLink(const LaunchPlan& plan, int restart_count) : plan_(plan) {
  if (plan.world_size() == 1) return;
  if (plan.serves_store()) {
    StoreServerOptions options;
    // A job on one machine is nobody else's business, unless its ranks are told an address of the network.
    options.bind_address = plan.num_nodes == 1 && is_loopback_name(plan.master_addr) ? "127.0.0.1" : "";
    options.port = plan.master_port;
    options.run_id = plan.run_id;
    options.world_size = plan.world_size();
    options.restart_count = restart_count;
    options.timing.rendezvous_timeout = plan.rendezvous_timeout;
    server_ = std::make_unique<StoreServer>(options);
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
  world.restart_count = restart_count;
  world.host = plan.host;
  world.source = "tessera launch";
  joining_ = std::thread([this, world] { join_as_agent(world); });
}

JobLink::~JobLink() {
  ending_ = true;
  if (joining_.joinable()) joining_.join();
}

int JobLink::master_port() const {
  if (server_) return server_->port();
  return plan_.master_port == 0 ? kTorchrunPort : plan_.master_port;
}

// What keeps the agent out keeps its ranks out, too, and they say it.
void JobLink::join_as_agent(const World& world) {
  StoreOptions options;
  options.rendezvous_timeout = std::min(kJoinTry, plan_.rendezvous_timeout);
  const auto deadline = std::chrono::steady_clock::now() + plan_.rendezvous_timeout;
  while (!ending_ && std::chrono::steady_clock::now() < deadline) {
    try {
      std::unique_ptr<StoreClient> client = StoreClient::join_as_agent(world, options);
      const std::lock_guard lock(mutex_);
      if (unreported_) client->report(*unreported_);
      client_ = std::move(client);
      return;
    } catch (const Error& error) {
      log_debug("the agent has not joined the job: {}", error.what());
      if (error.code() != ExitCode::kTryAgain) return;
    }
  }
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
  return client_ ? client_->failures().failure() : std::nullopt;
}

bool JobLink::is_needed() {
  return server_ && plan_.num_nodes > 1 && !server_->failure() && !server_->present().empty();
}

}  // namespace tessera
