// The order in which a node with only its own parts of the weights fetches groups, keeps and drops them. A
// pure function of the groups opened so far: every rank evaluates it on its own, and the simulation of a step
// (forecast/simulation) gets the same result.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "shard/layout/zero_memory.h"

namespace tessera {

// A group to be fetched into a slot, once the slot's current group is no longer in use.
struct Fetch {
  size_t slot;
  int64_t group;
};

class FetchOrder {
 public:
  // Without shards_weights() all groups are resident.
  FetchOrder(const ZeroLayout& layout, const ZeroSettings& settings);

  // Whether the group is always complete on the node: it is never opened or closed here.
  bool is_resident(int64_t group) const { return resident_begin(group) >= 0; }
  // Slots for layers, and one after them for embedding and head in turn.
  size_t num_slots() const { return slots_.size(); }
  // Where resident groups and slots are in memory of num_elements().
  int64_t resident_begin(int64_t group) const { return resident_begin_[static_cast<size_t>(group)]; }
  int64_t slot_begin(size_t slot) const { return slots_[slot].begin; }
  int64_t num_elements() const { return num_elements_; }

  // Opens a group, in model/parameter_access.h's order, and returns what to fetch, in this order: the
  // group itself unless it is there, then the next layers in the same direction, as many as there are other
  // slots, and the head while the last layers are being computed. Valid until the next call.
  std::span<const Fetch> open(int64_t group, bool forward);
  void close(int64_t group) { slots_[slot_of(group)].is_open = false; }
  // The slot of an open group.
  size_t slot_of(int64_t group) const;
  // The weights are new: nothing that was fetched is of use.
  void forget();

 private:
  struct Slot {
    int64_t begin = 0;
    bool for_ends = false;
    int64_t group = -1;
    bool is_open = false;
    uint64_t last_use = 0;  // clock_ at that time
  };

  bool is_end(int64_t group) const { return group == 0 || group == head_; }
  Slot* find(int64_t group);
  // In the least recently used slot.
  Slot& fetch(int64_t group);
  void fetch_ahead(int64_t group, bool forward);

  int64_t head_;
  int64_t num_layer_slots_ = 0;
  int64_t num_elements_ = 0;
  std::vector<int64_t> resident_begin_;  // by group; -1: fetched
  std::vector<Slot> slots_;
  std::vector<Fetch> fetches_;
  uint64_t clock_ = 0;
};

}  // namespace tessera
