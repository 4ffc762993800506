// An agent's connection to the rest of the job: node 0 serves the store, the agents of other nodes join it.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "comm/store_client.h"
#include "comm/store_server.h"
#include "launch/launch_plan.h"

namespace tessera {

// Never waits for another node, but in the destructor, for at most some seconds.
class JobLink {
 public:
  // Error(kBadConfig) when node 0's port is taken.
  JobLink(const LaunchPlan& plan, int restart_count);
  ~JobLink();
  JobLink(const JobLink&) = delete;
  JobLink& operator=(const JobLink&) = delete;

  // For MASTER_PORT.
  int master_port() const;
  // Tells all ranks and agents what is known first-hand: a rank of this node has failed.
  void report(const Failure& failure);
  // What the job has failed of, once that is known.
  std::optional<Failure> failure();
  // It failed of the store, which has ended or cannot be reached any more.
  bool has_lost_store();
  // Members of other nodes still need this node's store.
  bool is_needed();

 private:
  void join_as_agent(const World& world);

  const LaunchPlan& plan_;
  std::unique_ptr<StoreServer> server_;
  std::mutex mutex_;
  std::unique_ptr<StoreClient> client_;  // mutex_; null until the store has taken this agent in
  std::optional<Failure> unreported_;    // mutex_
  std::optional<Failure> kept_out_;      // mutex_; why the store did not take this agent in
  bool is_unreachable_ = false;          // mutex_; the store was not there
  std::atomic<std::chrono::steady_clock::duration> joining_ends_;  // since the clock's epoch
  std::thread joining_;
};

}  // namespace tessera
