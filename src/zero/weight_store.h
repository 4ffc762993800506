// The weights of a model over the ranks of a job: complete in the node's shared memory, or (stage 3, per
// layer) only the node's parts and those groups that are in use or about to be.
//
// Groups are opened in the order of model/parameter_access.h, the same on every rank: so each rank knows by
// itself which gather comes next and which memory it goes to.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "comm/communicator.h"
#include "tensor/tensor_view.h"
#include "zero/shard_plan.h"
#include "zero/zero_memory.h"

namespace tessera {

class WeightStore {
 public:
  // Collective; allocates. The communicator must outlive this.
  WeightStore(const ZeroLayout& layout, const ZeroSettings& settings, const ShardPlan& plan,
              Communicator& comm, ThreadPool& pool);

  // The elements of a group, complete and up to date; until close().
  std::byte* open(int64_t group, bool forward);
  void close(int64_t group);
  // open() would not wait; only for a group that the node has complete (node_has_all).
  bool is_complete(int64_t group);

  // What owners write to, and element `element` of the flat array in it: an element of this node's parts, or
  // any when the node has all weights.
  TensorView owned() const;
  int64_t owned_index(int64_t group, int64_t element) const;
  bool node_has_all() const { return !sharded_; }

  // Collective. This rank's part of `group` has new values; to be called for every group, ascending, and only
  // when no rank uses the old ones any more. Other nodes' parts are fetched in the background.
  void updated(int64_t group);
  // Collective. All elements of owned() were written by the ranks of the node, and nothing needs to be
  // fetched.
  void loaded();

 private:
  // Where a gathered group is or will be.
  struct Slot {
    std::byte* data = nullptr;
    bool for_ends = false;  // embedding or head, rather than a layer
    int64_t group = -1;
    uint64_t version = 0;
    bool is_open = false;
    uint64_t last_use = 0;    // by the clock of opens
    uint64_t last_close = 0;  // this rank's count of closes behind its last use
    uint64_t gather = 0;      // number of the gather that fills it
    bool is_complete = false;
  };
  // Something fetched in the background: this rank tells the others of the node when its share is there.
  struct Fetch {
    NetworkGroup::Ticket ticket;
    int64_t channel;
    uint64_t value;
  };

  bool is_resident(int64_t group) const { return resident_data_[static_cast<size_t>(group)] != nullptr; }
  bool is_end(int64_t group) const { return group == 0 || group == plan_.num_groups() - 1; }
  std::byte* open_resident(int64_t group);
  std::byte* open_gathered(int64_t group, bool forward);
  void fetch_ahead(int64_t group, bool forward);
  Slot* find_slot(int64_t group);
  Slot& slot_to_fill(int64_t group);
  Slot& start_gather(int64_t group);
  void copy_own_part(int64_t group, std::byte* to) const;
  void start_fetch(int64_t group, std::byte* data, int64_t channel, uint64_t value);
  // Waits for and announces this rank's fetches up to `value` of the channel; then whatever else is there.
  void announce(int64_t channel, uint64_t value);
  uint64_t stamp(int64_t group) const;

  ZeroSettings settings_;
  ShardPlan plan_;
  Communicator* comm_;
  int64_t element_bytes_;
  bool sharded_;
  bool fetches_;  // there are other nodes whose updates are needed
  SharedSegment weights_;
  SharedSegment live_;
  SharedCounters counters_;
  std::vector<std::byte*> resident_data_;  // by group; nullptr: gathered on demand
  std::vector<int64_t> owned_begin_;       // by group: index in owned() of the node's first element
  std::vector<uint64_t> seen_version_;     // by group: known to be complete
  std::vector<Slot> slots_;
  std::deque<Fetch> fetches_under_way_;
  std::vector<Part> byte_parts_;
  uint64_t version_ = 0;
  uint64_t use_clock_ = 0;
  uint64_t num_closes_ = 0;
  uint64_t num_gathers_ = 0;
};

}  // namespace tessera
