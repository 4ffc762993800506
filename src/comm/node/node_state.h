// The state that the ranks of a node share: progress counters in shared memory, which ranks are alive, and
// the one way to wait. Implementation of node_group.h.
#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory.h"
#include "comm/node/node_group.h"
#include "comm/socket/local_socket.h"

namespace tessera {

inline constexpr int kMaxLocalRanks = 256;

// A monotonic counter, and what is needed to sleep until it grows. Initially all zero.
struct alignas(kCacheLineBytes) CounterCell {
  std::atomic<uint64_t> value;
  std::atomic<uint32_t> wakeups;   // changes before every wake-up: the futex
  std::atomic<uint32_t> sleepers;  // asleep or about to be; without any, publishing makes no system call
};
static_assert(sizeof(CounterCell) == kCacheLineBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free);

// The condition a rank waits for: all ranks in the same operation, or progress that others publish.
enum class WaitKind { kBarrier, kCounters };

// Sets the counter (release) and wakes those sleeping on it.
void publish(CounterCell& cell, uint64_t value);

// The collective operation that a rank is about to start.
struct OperationRecord {
  uint64_t hash;  // of the whole text, which may be longer than `text`
  std::array<char, 120> text;
};

enum class RankState : int32_t { kThere = 0, kLeft, kFailing };

// One per rank, written by that rank only.
struct alignas(kCacheLineBytes) RankSlot {
  CounterCell operations;  // begun so far
  std::atomic<RankState> state;
  std::atomic<int32_t> culprit;  // kFailing: the job rank it blames, or -1
  // Operation n is in records[n % 2]: a rank begins operation n + 2 only after all have begun n + 1.
  std::array<OperationRecord, 2> records;
};

// Shared by a NodeGroup and its counters. Thread-safe, except for agree().
class NodeState {
 public:
  NodeState(const World& world, const NodeGroupOptions& options, FailureDetector& failures);

  int size() const { return world_.local_world_size; }
  int index() const { return world_.local_rank; }
  const World& world() const { return world_; }
  FailureDetector& failures() const { return failures_; }
  RankPosition* position() const { return position_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  void set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }
  // Whether each rank can have a processor of its own.
  bool ranks_have_processors() const { return ranks_have_processors_; }
  int rank_of(int index) const { return world_.node_rank * world_.local_world_size + index; }
  // "rank 3 on host worker-1".
  std::string describe(int index) const;

  // The connection to each rank of the node; not open for this rank itself.
  std::vector<UniqueFd> peers;
  // One slot per rank.
  PageBuffer control;
  RankSlot& slot(int index) const { return reinterpret_cast<RankSlot*>(control.data())[index]; }

  // Returns once every rank has reached its operation of this number and all of them match. `what` describes
  // it in full, including arguments.
  void agree(std::string_view what);
  // Tells the others that this rank is leaving, in order or because of a failure, and closes the connections.
  void leave(bool in_order);
  // Total time all threads have waited; short waits are not counted.
  double waited_s() const { return count(WaitKind::kBarrier).time_s + count(WaitKind::kCounters).time_s; }
  CollectiveCount count(WaitKind kind) const;
  void add_wait(WaitKind kind, int64_t bytes, std::chrono::nanoseconds time) const;
  // Throws through the failure detector, after telling the other ranks of the node which rank this one
  // blames.
  [[noreturn]] void fail_because(int index, const std::string& evidence,
                                 ExitCode code = ExitCode::kTryAgain) const;

  // Calls body(index) for each rank whose connection has closed. Costs a system call.
  template <typename Body>
  void for_closed_peers(const Body& body) const {
    std::array<bool, kMaxLocalRanks> closed;
    if (!find_closed_peers(&closed)) return;
    for (int i = 0; i < size(); ++i) {
      if (closed[static_cast<size_t>(i)]) body(i);
    }
  }
  // Throws because rank `closed` went away while this one waited for rank `awaited`.
  [[noreturn]] void blame_closed(int closed, int awaited, std::string_view purpose) const;

 private:
  bool find_closed_peers(std::array<bool, kMaxLocalRanks>* closed) const;

  const World world_;
  const bool ranks_have_processors_;
  std::atomic<std::chrono::milliseconds> timeout_;
  RankPosition* const position_;
  FailureDetector& failures_;
  uint64_t num_operations_ = 0;
  struct WaitCount {
    std::atomic<int64_t> calls = 0, bytes = 0, time_ns = 0;
  };
  mutable std::array<WaitCount, 2> waits_;  // by kind
};

// One wait for other ranks of the node. Allocates nothing unless it fails.
class NodeWait {
 public:
  NodeWait(const NodeState& state, WaitKind kind, const OpLabel& label, int64_t bytes)
      : state_(state), kind_(kind), label_(label), bytes_(bytes) {}
  ~NodeWait() { state_.add_wait(kind_, bytes_, started_ ? Clock::now() - begin_ : Clock::duration(0)); }
  NodeWait(const NodeWait&) = delete;
  NodeWait& operator=(const NodeWait&) = delete;

  // Waits until the counter of rank `index` has reached `value`.
  void until(CounterCell& cell, int index, uint64_t value);
  // Waits for at most one time slice; returns whether the counter has reached `value`.
  bool slice(CounterCell& cell, int index, uint64_t value);
  // Records in the rank's position that the wait is over.
  void mark_over(uint64_t value) const;

 private:
  using Clock = std::chrono::steady_clock;

  // Throws if any rank of the node has not left in order, or if the awaited rank has left at all.
  void check_peers(const CounterCell& cell, int index, uint64_t value) const;
  void wait_until(CounterCell& cell, int index, uint64_t value);
  void mark(int index, uint64_t value, bool is_over) const;
  std::string purpose() const;  // "gradients of group 3, 4096 bytes"

  const NodeState& state_;
  const WaitKind kind_;
  const OpLabel label_;
  const int64_t bytes_;
  bool started_ = false;
  Clock::time_point begin_;
};

}  // namespace tessera
