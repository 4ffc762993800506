// Everything a rank needs to work with the others: the store, its node, and the ranks with the same local
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

// Values of one Communicator::all_reduce_sum().
inline constexpr int64_t kMaxSummedValues = 64;
// Of one Communicator::broadcast_text(): some lines.
inline constexpr size_t kMaxTextBytes = 1000;

struct CommOptions {
  StoreOptions store;
  std::chrono::milliseconds timeout{60'000};  // --ddp_timeout: of every wait for a peer
  int connections = 4;
  std::string interface;
};

class Communicator {
 public:
  // Collective. A world of one opens nothing and all operations are empty.
  static std::unique_ptr<Communicator> open(const World& world, const CommOptions& options);
  ~Communicator();

  const World& world() const;
  const CommOptions& options() const;
  FailureDetector& failures();
  // Whoever works marks what it is at.
  RankPosition& position();
  StoreClient* store();  // nullptr in a world of one
  NodeGroup& node();
  NetworkGroup& rail();  // member i is this local rank on node i

  // Small data of all ranks; blocking. At most kMaxSummedValues. Sums are taken in the order of ranks: the
  // same bits everywhere.
  void all_reduce_sum(std::span<double> values, const OpLabel& label);
  // What `rank` put in as value `index` of the last all_reduce_sum(); until the next one. Of several ranks.
  double summand(int rank, int64_t index) const;
  void barrier(const OpLabel& label);
  void broadcast(std::span<std::byte> data, int root, const OpLabel& label);
  // The text of rank `root`, cut after kMaxTextBytes; that of the others does not count.
  std::string broadcast_text(std::string text, int root, const OpLabel& label);

  // Time that this rank has waited for others so far.
  double waited_s() const;

  // Of all waits from now on: longer where a rank does something on its own. Ranks that die or stop are
  // noticed as ever.
  void set_timeout(std::chrono::milliseconds timeout);

  // Settings that must be the same on every rank (StoreClient::check_same_settings).
  void check_same_settings(const std::map<std::string, std::string>& settings);
  // Tells the others why this rank ends, before it does, unless it does so because of them (PeerError).
  void report_failure(const Error& error);
  // Orderly end of all of it.
  void leave();

 private:
  Communicator();
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// While it lives, waits last as long as it takes: a rank reads, tokenizes or writes files on its own, while
// the others wait for it. Ranks that die or stop are noticed as ever.
class PatientScope {
 public:
  explicit PatientScope(Communicator& comm);
  ~PatientScope();
  PatientScope(const PatientScope&) = delete;
  PatientScope& operator=(const PatientScope&) = delete;

 private:
  Communicator* comm_;
};

// Of a process that is alone.
Communicator& single_process();

}  // namespace tessera
