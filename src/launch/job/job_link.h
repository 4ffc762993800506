// An agent's connection to the rest of the job: node 0 serves the store, the agents of the other nodes join
// it.
#pragma once

#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "comm/store/store_client.h"
#include "comm/store/store_server.h"
#include "launch/job/launch_plan.h"

namespace tessera {

// Never waits for another node, except in the destructor, for a few seconds at most.
class JobLink {
 public:
  // Error(kBadConfig) if node 0's port is taken.
  JobLink(const LaunchPlan& plan, int restart_count);
  ~JobLink();
  JobLink(const JobLink&) = delete;
  JobLink& operator=(const JobLink&) = delete;

  // Where the ranks find the store.
  int store_port() const;
  // The value for MASTER_PORT, the same on all nodes: the store's port or, for a program that serves its own
  // there, as torch.distributed does, a port without a listener.
  int master_port() const;
  // Tells all ranks and agents of a failure known first-hand: a rank of this node has failed.
  void report(const Failure& failure);
  // Why the job failed, once that is known.
  std::optional<Failure> failure();
  // Whether it failed because the store has ended or can no longer be reached.
  bool has_lost_store();
  // After a failure: hands in this node's report (describe_node()). Does not wait.
  void hand_in(const std::string& node_report);
  // Node 0: the reports of the other nodes that can be heard; waits for them at most `timeout`.
  std::map<int, std::string> node_reports(std::chrono::milliseconds timeout);
  // Node 0: tells the others where the report on all nodes is.
  void tell_report_place(const std::string& place);
  // The other nodes: where that report is; nullopt if node 0 does not say.
  std::optional<std::string> report_place();
  // Seconds since another node's agent was last heard from; nullopt if that is not known here.
  std::optional<double> silence_s(int node);
  // Number of nodes waiting to take part in the next start; 0 except on node 0.
  int num_waiting_nodes() { return server_ ? server_->num_waiting_nodes() : 0; }
  // Whether members on other nodes still need this node's store.
  bool is_needed();

 private:
  void join_as_agent(const World& world);

  const LaunchPlan& plan_;
  int free_port_ = 0;
  std::unique_ptr<StoreServer> server_;
  std::mutex mutex_;
  std::shared_ptr<StoreClient> client_;  // mutex_; null until the store has accepted this agent
  std::optional<Failure> unreported_;    // mutex_
  std::optional<Failure> kept_out_;      // mutex_; why the store did not accept this agent
  bool is_unreachable_ = false;          // mutex_; the store could not be reached
  std::atomic<std::chrono::steady_clock::duration> joining_ends_;  // since the clock's epoch
  std::thread joining_;
  std::future<std::optional<std::string>> handed_in_;
};

}  // namespace tessera
