// The store: one per job, in the agent of node 0 or in rank 0. Key-value pairs, membership, heartbeats, and
// the verdict on who failed first. Serves from one thread of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/ranks/failure.h"
#include "comm/store/store_client.h"

namespace tessera {

struct StoreServerOptions {
  std::vector<std::string> bind_addresses;  // empty: all
  int port = 0;                             // 0 = any free one
  std::string secret;                       // members must prove that they know it
  std::string run_id;
  int world_size = 1;  // ranks expected
  int restart_count = 0;
  // Agents of nodes 1 to num_agents have met and are about to join: one that does not join within
  // time_for_agents, or leaves before the job is complete, is a failure. 0: agents may come and go freely.
  int num_agents = 0;
  std::chrono::milliseconds time_for_agents{10'000};
  StoreOptions timing;
};

class StoreServer {
 public:
  // Error(kBadConfig) names the port if it is taken.
  static std::unique_ptr<StoreServer> start(const StoreServerOptions& options);
  // Members still connected see the store end. A verdict is sent in full before that.
  virtual ~StoreServer() = default;

  virtual int port() const = 0;
  // The verdict, once there is one.
  virtual std::optional<Failure> failure() const = 0;
  // Reports that the agents of other nodes have handed in (StoreClient::hand_in). Waits until all connected
  // agents have done so, or `timeout` has passed.
  virtual std::map<int, std::string> node_reports(std::chrono::milliseconds timeout) = 0;
  // Answers those agents, and those whose report is yet to come.
  virtual void answer_node_reports(const std::string& place) = 0;
  // Seconds since the agent of a node was last heard from; nullopt if it never joined.
  virtual std::optional<double> silence_of_agent(int node) = 0;
  // Reports an agent's first-hand knowledge that a rank it started has ended. Outweighs any suspicion.
  virtual void report(const Failure& failure) = 0;
  // Waits until all ranks have joined and all members have left, or the job has failed; returns whether it
  // has come to that.
  virtual bool wait_until_over(std::chrono::milliseconds timeout) = 0;
  // One line for a message: which ranks are missing, and the hosts of those that joined; "" if complete.
  virtual std::string missing() = 0;
  // Number of nodes that have recently asked to take part in the next start.
  virtual int num_waiting_nodes() = 0;
  // The members currently present: "rank 0 on host a, rank 1 on host b".
  virtual std::string present() = 0;

 private:
  class Impl;
};

}  // namespace tessera
