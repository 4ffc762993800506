// A member's side of the store: joins the job, sends heartbeats, learns of failures, exchanges small values.
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
  std::string interface;  // whose address is published; "" = GLOO_SOCKET_IFNAME, or the one that reaches
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
  // Calls leave() unless that has been done: to the others, a process that ends without it has failed. If the
  // scope ends by an exception, calls report_own_failure() instead.
  ~StoreClient() override;

  FailureDetector& failures();
  // The store has ended or fallen silent, but not because the job has failed.
  bool has_lost_store() const;

  // Values are bytes. get() waits until the key is set. Error(kTryAgain) at the deadline names the key.
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  // Adds to a number, initially 0, and returns the sum.
  int64_t add(const std::string& key, int64_t amount);
  // Requests a key's value without waiting; watched() returns it once it is set and has arrived here. One key
  // at a time.
  void watch(const std::string& key);
  std::optional<std::string> watched() const;

  // Collective over all ranks: the settings of every rank must equal those of rank 0. Error(kBadConfig) on
  // every rank names the first difference: setting, both values, rank and host.
  void check_same_settings(const std::map<std::string, std::string>& settings);

  // Host names and addresses by rank, as reported on joining; empty for an agent.
  const std::vector<std::string>& hosts() const;
  const std::vector<std::string>& addresses() const;
  std::string host(int rank) const override { return hosts().at(static_cast<size_t>(rank)); }
  // choose_local_address() in address.h.
  std::string local_address() const override;
  std::chrono::milliseconds rendezvous_timeout() const;
  // Derived from the job's secret, if it has one, its name and the number of the start.
  std::string job_key() const override;

  // Tells why this process is about to end: others report this instead of a lost connection. `message`
  // excludes the rank, which the store prepends.
  void report_own_failure(ExitCode code, const std::string& message);
  // For agents: reports first-hand knowledge about a rank of this node, with its complete message.
  void report(const Failure& failure);
  // For agents, once the job has failed: hands in where the ranks of its node are. Waits for the answer, the
  // place of the report on all nodes; nullopt if there is none within the timeout.
  std::optional<std::string> hand_in(const std::string& node_report, std::chrono::milliseconds timeout);
  // Orderly exit: from now on this rank's absence is not a failure. The rank that serves the store waits here
  // until all others have left or one has failed.
  void leave();

 private:
  StoreClient();
  static std::unique_ptr<StoreClient> join(const World& world, const StoreOptions& options, bool is_agent);
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
