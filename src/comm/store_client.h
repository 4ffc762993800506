// A member's side of the store: joins the job, keeps telling that it lives, learns of failures, exchanges
// small values. One connection per process and a thread of its own for heartbeats and failures.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/failure.h"
#include "comm/world.h"

namespace tessera {

struct StoreOptions {
  std::chrono::milliseconds rendezvous_timeout{
      900'000};  // until all members are there (torchrun: 15 minutes)
  std::chrono::milliseconds heartbeat{500};
  std::chrono::milliseconds silence{5'000};   // a member not heard of for so long has failed
  std::chrono::milliseconds lost_grace{300};  // a lost connection waits so long for a report that knows why
  std::chrono::milliseconds suspicion_grace{1'000};  // and a suspicion for any direct evidence
  std::string interface;  // whose address others are told; "" = GLOO_SOCKET_IFNAME, or the one that reaches
                          // the store
};

// Silence counts as a failure after `timeout`; heartbeats are as frequent as that takes.
void set_heartbeat_timeout(StoreOptions* options, std::chrono::milliseconds timeout);

class StoreClient {
 public:
  // Resolves and connects, again and again until the rendezvous timeout, and joins as a rank. Returns when
  // all ranks have joined. Error(kTryAgain) lists who is missing; Error(kBadConfig) when the store belongs to
  // another job, or another process has this rank.
  static std::unique_ptr<StoreClient> join(const World& world, const StoreOptions& options);
  // As the agent of node world.node_rank (world.rank is not used): returns as soon as the store has accepted
  // it, before its ranks can have joined. Members in the same way: silence or loss of the agent is a failure
  // of the job, and failures() tells the agent of any other.
  static std::unique_ptr<StoreClient> join_as_agent(const World& world, const StoreOptions& options);
  // An orderly leave() if not done; a process that ends without is a failure for the others. While an
  // exception ends the scope, a report_own_failure() instead.
  ~StoreClient();

  FailureDetector& failures();
  // The store has ended or fallen silent, and not because the job has failed.
  bool has_lost_store() const;

  // Values are bytes. get() waits until the key is set. Error(kTryAgain) at the deadline names the key.
  void set(const std::string& key, const std::string& value);
  std::string get(const std::string& key, std::chrono::milliseconds timeout);
  // Adds to a number, 0 at first, and returns the sum.
  int64_t add(const std::string& key, int64_t amount);
  // Asks for a key's value without waiting; watched() tells it once it is set and this process has heard of
  // it. One key at a time.
  void watch(const std::string& key);
  std::optional<std::string> watched() const;

  // Collective over all ranks: every one's settings must be those of rank 0. Error(kBadConfig) on every rank
  // names the first difference: setting, both values, rank and host.
  void check_same_settings(const std::map<std::string, std::string>& settings);

  // Host names and addresses by rank, as joined; empty for an agent.
  const std::vector<std::string>& hosts() const;
  const std::vector<std::string>& addresses() const;
  // The local address that others may connect to (choose_local_address() in address.h).
  const std::string& local_address() const;
  std::chrono::milliseconds rendezvous_timeout() const;
  // What the members of this start of the job can prove to each other: follows from the job's secret, if it
  // has one, its name and the number of the start.
  std::string job_key() const;

  // Tells why this process ends, before it does: others report this instead of a lost connection. `message`
  // without the rank, which the store puts before it.
  void report_own_failure(ExitCode code, const std::string& message);
  // For agents: what is known first-hand of a rank of this node, with its complete message.
  void report(const Failure& failure);
  // For agents, once the job has failed: where the ranks of its node stand. Waits for the answer: where the
  // report on all nodes is. Nothing when there is none within the time.
  std::optional<std::string> hand_in(const std::string& node_report, std::chrono::milliseconds timeout);
  // Orderly end: from now on this rank's absence is no failure. The rank that serves the store waits here
  // until all others have left or one has failed.
  void leave();

 private:
  StoreClient();
  static std::unique_ptr<StoreClient> join(const World& world, const StoreOptions& options, bool is_agent);
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace tessera
