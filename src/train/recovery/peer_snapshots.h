// Snapshots of every rank's state in the memory of its own node and of the next one (--peer_snapshot_steps),
// from which a job resumes after losing processes or a node, without reading a checkpoint.
//
// Every rank has four slots (World::snapshot_slots): a pair for its own states, and a pair for those it
// receives from the rank with the same local rank on the previous node. Each pair is written alternately, and
// a slot is overwritten only once all ranks are known to have the newer state, own and received. So at any
// moment there is a step whose state survives in full if one node is lost. On a single node nothing is sent.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/snapshot_slot.h"
#include "comm/communicator.h"
#include "model/parameters.h"
#include "platform/thread_pool.h"
#include "shard/store_state.h"
#include "train/recovery/held_state.h"

namespace tessera {

class PeerSnapshots {
 public:
  // Collective. `job` names the job and its output folder; rank 0's value is used. Error(kBadConfig) if no
  // agent keeps memory for this rank. comm and pool must outlive this.
  PeerSnapshots(Communicator& comm, ThreadPool& pool, const std::string& job);
  // Abandons transfers in progress.
  ~PeerSnapshots();

  // Bytes currently held by all ranks of this node. Collective.
  int64_t held_bytes_of_node() const;

  // Collective: finds the newest state left by the ranks of an earlier start, which is kept until the first
  // write() is known to be complete.
  HeldSearch find();
  HeldTexts texts(const HeldState& held) const { return held_texts(held, *comm_, slots_); }
  void load(const HeldState& held, const ParameterLayout& layout, StateTensors tensors,
            const std::vector<ElementRange>& kept, const StateSink& sink) const {
    load_held_state(held, *comm_, *pool_, slots_, layout, tensors, kept, sink);
  }

  // Collective, once before the first write(): allocates memory and connects the nodes. The arguments must
  // outlive this.
  void open(const ParameterLayout& layout, const StoreState& state);
  // Collective: takes a snapshot of the current state. Sending continues after the return, at the latest
  // until the next call. Rank 0 calls make_texts().
  void write(int64_t step, const std::function<SnapshotTexts()>& make_texts);
  // Seconds the last write() took, reported once.
  std::optional<double> take_stall_s() { return std::exchange(stall_s_, std::nullopt); }
  // Collective: waits until everything sent has arrived.
  void finish();

 private:
  // The transfer of snapshots between ranks.
  class Transfer;
  static constexpr size_t kOwn = 0, kSent = 1;  // pairs

  SnapshotSlot& slot(size_t pair, size_t index) { return slots_[2 * pair + index]; }
  SnapshotSlot& next_slot(size_t pair) { return slot(pair, 1 - newest_[pair]); }
  bool has_peer() const { return comm_->world().num_nodes > 1; }
  int rank_of_node(int node) const;
  SnapshotId id_of(int64_t step) const;

  Communicator* comm_;
  ThreadPool* pool_;
  const StoreState* state_ = nullptr;
  std::vector<SnapshotSlot> slots_;
  std::array<size_t, 2> newest_ = {0, 0};   // of each pair: the slot not written next
  std::array<bool, 2 * 2> is_needed_ = {};  // by slot: part of what find() found
  uint64_t job_ = 0;
  uint64_t start_key_ = 0;
  std::vector<ElementRange> owned_;
  int64_t num_written_ = 0;
  std::optional<double> stall_s_;
  std::unique_ptr<Transfer> transfer_;  // last: it writes to the slots
};

}  // namespace tessera
