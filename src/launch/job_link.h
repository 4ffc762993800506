// An agent's connection to the rest of the job: node 0 serves the store, the agents of other nodes join it.
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
  // Once it has failed, of this node (describe_node()). Does not wait.
  void hand_in(const std::string& node_report);
  // Node 0: what the other nodes that can be heard have handed in, waited for as long as `timeout`.
  std::map<int, std::string> node_reports(std::chrono::milliseconds timeout);
  // Node 0: where the report on all nodes is.
  void tell_report_place(const std::string& place);
  // The other nodes: where node 0 says that it is; nothing when it says nothing.
  std::optional<std::string> report_place();
  // Since the last word of another node's agent; nothing when that is not known here.
  std::optional<double> silence_s(int node);
  // That would take part in the next start; 0 on other nodes than the first.
  int num_waiting_nodes() { return server_ ? server_->num_waiting_nodes() : 0; }
  // Members of other nodes still need this node's store.
  bool is_needed();

 private:
  void join_as_agent(const World& world);

  const LaunchPlan& plan_;
  std::unique_ptr<StoreServer> server_;
  std::mutex mutex_;
  std::shared_ptr<StoreClient> client_;  // mutex_; null until the store has taken this agent in
  std::optional<Failure> unreported_;    // mutex_
  std::optional<Failure> kept_out_;      // mutex_; why the store did not take this agent in
  bool is_unreachable_ = false;          // mutex_; the store was not there
  std::atomic<std::chrono::steady_clock::duration> joining_ends_;  // since the clock's epoch
  std::thread joining_;
  std::future<std::optional<std::string>> handed_in_;
};

}  // namespace tessera
