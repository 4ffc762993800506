// A member's side of the store: joins the job, sends heartbeats, learns of failures, shares small values.
// One connection per process, and a thread of its own for heartbeats and failures.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/ranks/failure.h"
#include "comm/ranks/rendezvous.h"
#include "comm/ranks/world.h"

namespace tessera {

struct StoreOptions {
  std::chrono::milliseconds rendezvous_timeout{900'000};  // until all members have joined (torchrun: 15 min)
  std::chrono::milliseconds heartbeat{500};
  std::chrono::milliseconds silence{5'000};          // a member silent for this long has failed
  std::chrono::milliseconds lost_grace{300};         // after a lost connection, wait for a report of why
  std::chrono::milliseconds suspicion_grace{1'000};  // after a suspicion, wait for direct evidence
  std::string interface;  // its address is published; "" = GLOO_SOCKET_IFNAME, or the one that reaches
                          // the store
};

// Makes silence count as a failure after `timeout`; heartbeats become as frequent as that requires.
void set_heartbeat_timeout(StoreOptions* options, std::chrono::milliseconds timeout);

class StoreClient : public Rendezvous {
 public:
  // Resolves and connects, retrying until the rendezvous timeout, and joins as a rank. Returns once all ranks
  // have joined. Error(kTryAgain) lists who is missing; Error(kBadConfig) if the store belongs to another job
  // or another process has this rank.
  static std::unique_ptr<StoreClient> join(const World& world, const StoreOptions& options);
  // Joins as the agent of node world.node_rank (world.rank is not used). Returns as soon as the store has
  // accepted it, before its ranks can have joined. Agents are members like ranks: silence or loss of the
  // agent is a failure of the job, and failures() tells the agent of any other failure.
  static std::unique_ptr<StoreClient> join_as_agent(const World& world, const StoreOptions& options);
  // The destructor calls leave() unless that has been done: to the others, a process that ends without it has
  // failed. If the scope ends by an exception, it calls report_own_failure() instead.

  virtual FailureDetector& failures() = 0;
  // The store has ended or fallen silent, but not because the job has failed.
  virtual bool has_lost_store() const = 0;

  // Values of set() and get() are bytes. Error(kTryAgain) at the deadline names the key.
  // Adds to a number, initially 0, and returns the sum.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
  // Requests a key's value without waiting; watched() returns it once it is set and has arrived here. One key
  // at a time.
  virtual void watch(const std::string& key) = 0;
  virtual std::optional<std::string> watched() const = 0;

  // Collective over all ranks: the settings of every rank must equal those of rank 0. Error(kBadConfig) on
  // every rank names the first difference: setting, both values, rank and host.
  virtual void check_same_settings(const std::map<std::string, std::string>& settings) = 0;

  // Host names and addresses by rank, as reported on joining; empty for an agent.
  virtual const std::vector<std::string>& hosts() const = 0;
  virtual const std::vector<std::string>& addresses() const = 0;
  std::string host(int rank) const override { return hosts().at(static_cast<size_t>(rank)); }
  virtual std::chrono::milliseconds rendezvous_timeout() const = 0;

  // Tells why this process is about to end: others report this instead of a lost connection. `message`
  // excludes the rank, which the store prepends.
  virtual void report_own_failure(ExitCode code, const std::string& message) = 0;
  // For agents: reports first-hand knowledge about a rank of this node, with its complete message.
  virtual void report(const Failure& failure) = 0;
  // For agents, once the job has failed: hands in where the ranks of its node are. Waits for the answer, the
  // place of the report on all nodes; nullopt if there is none within the timeout.
  virtual std::optional<std::string> hand_in(const std::string& node_report,
                                             std::chrono::milliseconds timeout) = 0;
  // Orderly exit: from now on this rank's absence is not a failure. The rank that serves the store waits here
  // until all others have left or one has failed.
  virtual void leave() = 0;

 private:
  class Impl;
};

}  // namespace tessera
