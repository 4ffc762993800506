// Everything a rank needs to communicate: the store, the ranks of its node, and the ranks with the same local
// rank on other nodes (its rail).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/memory.h"
#include "comm/network/network_group.h"
#include "comm/node/node_group.h"
#include "comm/ranks/rank_position.h"
#include "comm/ranks/world.h"
#include "comm/store/store_client.h"

namespace tessera {

// Size of a value that Communicator::all_gather() and its kin take.
inline constexpr int64_t kMaxValueBytes = 512;
// Maximum size of one Communicator::broadcast_text(): a few lines.
inline constexpr size_t kMaxTextBytes = 1000;

template <typename T>
concept Arithmetic = std::is_arithmetic_v<T>;

// The timeout (--ddp_timeout) limits every wait for a peer.
struct CommOptions : NetworkOptions {
  StoreOptions store;
};

class Communicator {
 public:
  // Collective. With a world size of one nothing is opened and all operations are no-ops.
  static std::unique_ptr<Communicator> open(const World& world, const CommOptions& options);
  // Collective on each node of `job`, which must outlive the result: the ranks of this node as a job of one
  // node. Both use the same NodeGroup, so that their operations must not overlap.
  static std::unique_ptr<Communicator> of_node(Communicator& job);

  const World& world() const { return world_; }
  const CommOptions& options() const { return options_; }
  FailureDetector& failures() { return job_ ? job_->failures() : store_ ? store_->failures() : alone_; }
  // Code that does work records here what it is doing.
  RankPosition& position() { return job_ ? job_->position_ : position_; }

  StoreClient* store() { return store_.get(); }  // nullptr in a world of one
  NodeGroup& node() { return *node_; }
  NetworkGroup& rail() { return *rail_; }  // member i is this local rank on node i
  // Collective the first time: opens another group of these ranks, for transfers that continue while the rail
  // is in use.
  NetworkGroup& open_background_rail();
  // nullptr until then; any thread may ask.
  NetworkGroup* background_rail() const { return background_.opened; }
  // Opens the group of this rail's ranks on nodes [first_node, first_node + num_nodes) for all-to-alls of
  // tokens: each node is in one such group.
  NetworkGroup& open_token_rail(int first_node, int num_nodes);
  NetworkGroup* token_rail() const { return token_.opened; }

  // Collectives on small values, one from each rank; blocking. T is trivially copyable and takes at most
  // kMaxValueBytes. All ranks get the same bits: sums are taken in the order of ranks.
  template <typename T>
  void all_gather(const T& value, std::span<T> by_rank, const OpLabel& label);
  template <typename T>
  std::vector<T> all_gather(const T& value, const OpLabel& label);
  template <Arithmetic T>
  T sum(T value, const OpLabel& label);
  template <Arithmetic T>
  T max(T value, const OpLabel& label);
  bool any(bool value, const OpLabel& label) { return max(value, label); }
  bool all(bool value, const OpLabel& label) { return !any(!value, label); }
  // Element by element; any number of them.
  void sum(std::span<double> values, const OpLabel& label);
  // The value of rank `root`.
  template <typename T>
  T broadcast(T value, int root, const OpLabel& label);

  void barrier(const OpLabel& label);
  void broadcast_bytes(std::span<std::byte> data, int root, const OpLabel& label);
  // Returns the text of rank `root`, truncated to kMaxTextBytes; the text of other ranks is ignored.
  std::string broadcast_text(std::string text, int root, const OpLabel& label);

  // Total time this rank has waited for others so far.
  double waited_s() const;

  // Sets the timeout of all waits from now on: longer where a rank works on its own. Ranks that die or hang
  // are still detected as before.
  void set_timeout(std::chrono::milliseconds timeout);

  // Checks settings that must be identical on every rank (StoreClient::check_same_settings).
  void check_same_settings(const std::map<std::string, std::string>& settings) {
    if (store_) store_->check_same_settings(settings);
  }
  // Tells the others why this rank is about to exit, unless another rank is the reason (PeerError).
  void report_failure(const Error& error);
  // Orderly shutdown of all connections.
  void leave() {
    if (store_) store_->leave();
  }

 private:
  Communicator(const World& world, const CommOptions& options);
  explicit Communicator(Communicator& job);

  void open_groups();
  void allocate_values();
  // Every rank's value, in gathered(rank) until the next call.
  void gather(std::span<const std::byte> own, const OpLabel& label);
  std::byte* gathered(int rank) const {
    return values_.data() + (num_gathers_ % 2 * world_.world_size + rank) * kMaxValueBytes;
  }
  template <typename T>
  T gathered_as(int rank) const;

  // A group beside the rail, opened when it is needed.
  struct ExtraRail {
    std::optional<NetworkGroup> group;
    std::atomic<NetworkGroup*> opened = nullptr;  // for other threads
  };
  NetworkGroup& open(ExtraRail& extra, const char* name, int first_node, int num_nodes);

  const World world_;
  CommOptions options_;
  RankPosition position_;
  FailureDetector alone_;
  std::unique_ptr<StoreClient> store_;
  Communicator* job_ = nullptr;  // the job this is a node of
  std::shared_ptr<NodeGroup> node_;
  std::optional<NetworkGroup> rail_;
  ExtraRail background_, token_;
  PageBuffer values_;  // [2][world_size][kMaxValueBytes]: two tables alternate
  PageBuffer board_;
  std::vector<std::byte> rail_values_;
  std::vector<Part> parts_;
  int64_t num_gathers_ = 0;
};

template <typename T>
T Communicator::gathered_as(int rank) const {
  T value;
  std::memcpy(&value, gathered(rank), sizeof(T));
  return value;
}

template <typename T>
void Communicator::all_gather(const T& value, std::span<T> by_rank, const OpLabel& label) {
  static_assert(std::is_trivially_copyable_v<T> && sizeof(T) <= kMaxValueBytes);
  gather(std::as_bytes(std::span(&value, 1)), label);
  for (size_t rank = 0; rank < by_rank.size(); ++rank) by_rank[rank] = gathered_as<T>(static_cast<int>(rank));
}

template <typename T>
std::vector<T> Communicator::all_gather(const T& value, const OpLabel& label) {
  // Not of bool: std::vector<bool> is no span.
  std::vector<T> by_rank(static_cast<size_t>(world().world_size));
  all_gather(value, std::span(by_rank), label);
  return by_rank;
}

template <Arithmetic T>
T Communicator::sum(T value, const OpLabel& label) {
  gather(std::as_bytes(std::span(&value, 1)), label);
  T total = {};
  for (int rank = 0; rank < world().world_size; ++rank) total += gathered_as<T>(rank);
  return total;
}

template <Arithmetic T>
T Communicator::max(T value, const OpLabel& label) {
  gather(std::as_bytes(std::span(&value, 1)), label);
  T largest = gathered_as<T>(0);
  for (int rank = 1; rank < world().world_size; ++rank) largest = std::max(largest, gathered_as<T>(rank));
  return largest;
}

template <typename T>
T Communicator::broadcast(T value, int root, const OpLabel& label) {
  static_assert(std::is_trivially_copyable_v<T>);
  broadcast_bytes(std::as_writable_bytes(std::span(&value, 1)), root, label);
  return value;
}

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
