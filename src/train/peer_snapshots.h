// Copies of every rank's state in the memory of its own node and of the next one (--peer_snapshot_steps):
// what a job goes on from when processes or a node are lost, without reading a checkpoint.
//
// Every rank has four slots (World::snapshot_slots): a pair for states of its own, and a pair for those of
// the rank with its local rank on the node before, which are sent to it. Each pair is written in turn, and a
// slot is written again only when all ranks are known to have the state behind it, own and sent. So at any
// moment there is a step whose state is whole on the nodes that are left when one goes. On a single node
// nothing is sent.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "model/parameters.h"
#include "platform/thread_pool.h"
#include "train/held_state.h"
#include "train/parameter_state.h"
#include "train/snapshot_slot.h"

namespace tessera {

// Memory that the slots of a rank with so many elements take, but for the texts of the run.
int64_t peer_snapshot_bytes(int64_t num_elements, int num_nodes);

class PeerSnapshots {
 public:
  // Collective. `job` names the job and its output folder; rank 0's counts. Error(kBadConfig) when no agent
  // keeps memory for this rank. comm and pool must outlive this.
  PeerSnapshots(Communicator& comm, ThreadPool& pool, const std::string& job);
  // Abandons what is being sent.
  ~PeerSnapshots();

  // Of all ranks of this node, now. Collective.
  int64_t held_bytes_of_node() const;

  // Collective: the newest state that ranks of a former start have left; it stays until the first write() is
  // known to be complete.
  HeldSearch find();
  HeldTexts texts(const HeldState& held) const { return held_texts(held, *comm_, slots_); }
  void load(const HeldState& held, const ParameterLayout& layout, const std::vector<ElementRange>& kept,
            const StateSink& sink) const {
    load_held_state(held, *comm_, *pool_, slots_, layout, kept, sink);
  }

  // Collective, once before the first write(): memory, and connections between the nodes. What is passed must
  // outlive this.
  void open(const ParameterLayout& layout, const ParameterState& state);
  // Collective: keeps the state as it is now. Sending goes on when this has returned, until the next call at
  // the latest. `texts` are those of rank 0; others have none.
  void write(int64_t step, const SnapshotTexts& texts);
  // Collective: until all that is sent has arrived.
  void finish();

 private:
  // What ranks send each other.
  class Transfer;
  static constexpr size_t kOwn = 0, kSent = 1;  // pairs

  SnapshotSlot& slot(size_t pair, size_t index) { return slots_[2 * pair + index]; }
  SnapshotSlot& next_slot(size_t pair) { return slot(pair, 1 - newest_[pair]); }
  bool has_peer() const { return comm_->world().num_nodes > 1; }
  int rank_of_node(int node) const;
  std::vector<int64_t> bytes_of_all(int64_t own_bytes);
  SnapshotId id_of(int64_t step) const;

  Communicator* comm_;
  ThreadPool* pool_;
  const ParameterState* state_ = nullptr;
  std::vector<SnapshotSlot> slots_;
  std::array<size_t, 2> newest_ = {0, 0};   // of each pair: not written next
  std::array<bool, 2 * 2> is_needed_ = {};  // by slot: part of what find() has found
  uint64_t job_ = 0;
  uint64_t start_key_ = 0;
  std::vector<ElementRange> owned_;
  int64_t num_written_ = 0;
  std::unique_ptr<Transfer> transfer_;  // last: it writes to the slots
};

}  // namespace tessera
