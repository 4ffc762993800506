// Everything a rank needs to communicate: the store, the ranks of its node, and the ranks with the same local
// rank on other nodes (its rail).
#pragma once

#include <memory>
#include <span>
#include <string>

#include "comm/network_group.h"
#include "comm/node_group.h"
#include "comm/rank_position.h"
#include "comm/store_client.h"
#include "comm/world.h"

namespace tessera {

// Maximum number of values in one Communicator::all_reduce_sum().
inline constexpr int64_t kMaxSummedValues = 64;
// Maximum size of one Communicator::broadcast_text(): a few lines.
inline constexpr size_t kMaxTextBytes = 1000;

struct CommOptions {
  StoreOptions store;
  std::chrono::milliseconds timeout{60'000};  // --ddp_timeout: limit of every wait for a peer
  int connections = 4;
  std::string interface;
};

class Communicator {
 public:
  // Collective. With a world size of one nothing is opened and all operations are no-ops.
  static std::unique_ptr<Communicator> open(const World& world, const CommOptions& options);
  ~Communicator();

  const World& world() const;
  const CommOptions& options() const;
  FailureDetector& failures();
  // Code that does work records here what it is doing.
  RankPosition& position();
  StoreClient* store();  // nullptr in a world of one
  NodeGroup& node();
  NetworkGroup& rail();  // member i is this local rank on node i

  // Sums a few values over all ranks; blocking. At most kMaxSummedValues. Sums are taken in rank order, so
  // the result is bitwise identical everywhere.
  void all_reduce_sum(std::span<double> values, const OpLabel& label);
  // Value `index` that `rank` contributed to the last all_reduce_sum(); valid until the next one. Only with
  // more than one rank.
  double summand(int rank, int64_t index) const;
  void barrier(const OpLabel& label);
  void broadcast(std::span<std::byte> data, int root, const OpLabel& label);
  // Returns the text of rank `root`, truncated to kMaxTextBytes; the text of other ranks is ignored.
  std::string broadcast_text(std::string text, int root, const OpLabel& label);

  // Total time this rank has waited for others so far.
  double waited_s() const;

  // Sets the timeout of all waits from now on: longer where a rank works on its own. Ranks that die or hang
  // are still detected as before.
  void set_timeout(std::chrono::milliseconds timeout);

  // Checks settings that must be identical on every rank (StoreClient::check_same_settings).
  void check_same_settings(const std::map<std::string, std::string>& settings);
  // Tells the others why this rank is about to exit, unless another rank is the reason (PeerError).
  void report_failure(const Error& error);
  // Orderly shutdown of all connections.
  void leave();

 private:
  Communicator();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Suspends the timeout of waits during its lifetime: one rank reads, tokenizes or writes files while the
// others wait for it. Ranks that die or hang are still detected as before.
class PatientScope {
 public:
  explicit PatientScope(Communicator& comm);
  ~PatientScope();
  PatientScope(const PatientScope&) = delete;
  PatientScope& operator=(const PatientScope&) = delete;

 private:
  Communicator* comm_;
};

// The communicator of a single-process run.
Communicator& single_process();

}  // namespace tessera
