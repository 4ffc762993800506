// The ranks of one node: memory that all of them map, and ways to wait for each other through it.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/memory.h"
#include "comm/ranks/collective_count.h"
#include "comm/ranks/failure.h"
#include "comm/ranks/op_label.h"
#include "comm/ranks/rank_position.h"
#include "comm/ranks/world.h"
#include "platform/thread_pool.h"

namespace tessera {

class NodeState;
struct CounterCell;

// Monotonic counters, one per rank of the node and channel, each in its own cache line.
class SharedCounters {
 public:
  // Sets this rank's counter of the channel (release) and wakes those who wait.
  void publish(int64_t channel, uint64_t value);
  uint64_t value(int index, int64_t channel) const;
  // Waits until the counter of rank `index` of the node, or of all ranks, has reached `value` (acquire).
  // Spins briefly, then sleeps. Throws like FailureDetector::check(); after the timeout calls fail_because()
  // with rank, host, label and bytes.
  void wait(int index, int64_t channel, uint64_t value, const OpLabel& label, int64_t bytes = 0) const;
  void wait_all(int64_t channel, uint64_t value, const OpLabel& label, int64_t bytes = 0) const;

 private:
  friend class NodeGroup;
  // Counters of a rank are contiguous: each rank writes its own pages.
  CounterCell& cell(int index, int64_t channel) const;

  std::shared_ptr<NodeState> state_;
  std::shared_ptr<const PageBuffer> segment_;
  int64_t num_channels_ = 0;
};

struct NodeGroupOptions {
  std::chrono::milliseconds timeout{60'000};  // per wait
  RankPosition* position = nullptr;           // records every wait; must outlive the group
};

class NodeGroup {
 public:
  // Collective over the node's ranks: rank 0 of the node listens on an abstract Unix socket named after run
  // id, port, node and incarnation; the others connect. A group of one opens no socket. `failures` must
  // outlive this.
  NodeGroup(const World& world, const NodeGroupOptions& options, FailureDetector& failures);
  ~NodeGroup();

  int size() const;   // local_world_size
  int index() const;  // local_rank

  // Collective operations: every rank of the node must call them in the same order with the same arguments; a
  // mismatch is an error that names both ranks.
  PageBuffer allocate(std::string_view name, int64_t size_bytes);
  SharedCounters make_counters(std::string_view name, int64_t num_channels);
  void barrier(const OpLabel& label);

  // Total time this rank has waited so far; waits of a few microseconds are not counted.
  double waited_s() const;
  // "barrier": collective operations; "wait": waits for data of other ranks (SharedCounters), with its bytes.
  // The time is as in waited_s(). Any thread may call it.
  std::vector<CollectiveCount> collectives() const;

  // Faults in the index()-th of size() equal parts of the segment now, in huge pages where possible
  // (platform/prefault.h), so that no page faults hit later work.
  void prefault(const PageBuffer& segment, ThreadPool& pool) const;

  // Sets the timeout of waits from now on: longer where a rank works on its own.
  void set_timeout(std::chrono::milliseconds timeout);

 private:
  const std::shared_ptr<NodeState> state_;
  const int exceptions_at_start_;
};

}  // namespace tessera
