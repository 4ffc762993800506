// The weights of a model across the ranks of a job: complete in each node's shared memory, or (stage 3, per
// layer) only the node's parts and the groups that are in use or about to be. This is memory of the host.
//
// With quantized_weights a node computes with its own parts as they are and with those of the other nodes
// rounded to blocks of int8, from the first step on: the rounding depends on the masters alone, so that a
// resumed run has the same bits.
//
// Groups are opened in the order of model/parameter_access.h, the same on every rank, so each rank knows
// without communication which gather comes next and which memory it goes to.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <vector>

#include "comm/communicator.h"
#include "shard/layout/fetch_order.h"
#include "shard/layout/shard_plan.h"
#include "shard/layout/zero_memory.h"
#include "shard/weights/packed_weights.h"
#include "shard/weights/weight_place.h"
#include "tensor/tensor_view.h"

namespace tessera {

class WeightStore final : public WeightPlace {
 public:
  // Collective; allocates. The communicator must outlive this.
  WeightStore(const ZeroLayout& layout, const ZeroSettings& settings, const ShardPlan& plan,
              Communicator& comm, ThreadPool& pool);

  // The elements of a group, complete and up to date, until close().
  std::byte* open(int64_t group, WeightUse use) override;
  void close(int64_t group) override;
  // The node must have all weights.
  void reserve_packed_forms(std::span<const int64_t> bytes_by_group, PackShare pack_share) override;
  std::byte* packed_forms(int64_t group) override { return packed_ ? packed_->forms(group) : nullptr; }
  std::vector<std::span<std::byte>> opened_memory() const override {
    return {weights_.as<std::byte>(), live_.as<std::byte>()};
  }

  // The memory that owners write to: an element of this node's parts, or any element if the node has all.
  TensorView memory() const override;
  int64_t index(int64_t group, int64_t element) const override;
  bool node_has_all() const { return !sharded_; }
  // Other nodes' parts arrive rounded: they have to be fetched even where the node could read them itself.
  bool fetches_rounded() const { return fetches_ && settings_.quantized_weights; }

  // Other nodes' parts are fetched in the background.
  void updated(int64_t group) override;
  void loaded(bool whole_node) override;
  void finish_updates() override;

 private:
  // Memory where a gathered group is or will be.
  struct Slot {
    std::byte* data = nullptr;
    uint64_t last_close = 0;  // this rank's count of closes after its last use
    uint64_t gather = 0;      // number of the gather that fills it
    bool is_complete = false;
  };
  // A background fetch: this rank tells the others on the node when its share has arrived.
  struct Transfer {
    NetworkGroup::Ticket ticket;
    int64_t channel;
    uint64_t value;
  };

  bool is_resident(int64_t group) const { return resident_data_[static_cast<size_t>(group)] != nullptr; }
  std::byte* open_memory(int64_t group, bool forward);
  std::byte* open_resident(int64_t group);
  // Whether open() would return without waiting; only for a group that is complete on the node.
  bool is_complete(int64_t group);
  std::byte* open_gathered(int64_t group, bool forward);
  void allocate_parts(ThreadPool& pool);
  void start_gather(const Fetch& fetch);
  void copy_own_parts(int64_t group, std::byte* to) const;
  void start_fetch(int64_t group, std::byte* data, int64_t channel, uint64_t value);
  // Waits for and announces this rank's fetches up to `value` of the channel, then any others that have
  // arrived.
  void announce(int64_t channel, uint64_t value);
  uint64_t stamp(int64_t group) const;

  ZeroSettings settings_;
  ShardPlan plan_;
  Communicator* comm_;
  ThreadPool* pool_;
  int64_t element_bytes_;
  bool sharded_;
  bool fetches_;  // there are other nodes whose updates are needed
  PageBuffer weights_;
  PageBuffer live_;
  SharedCounters counters_;
  std::vector<std::byte*> resident_data_;  // by group; nullptr: gathered on demand
  std::vector<int64_t> owned_begin_;       // by group: index in owned() of the node's first element
  std::vector<uint64_t> seen_version_;     // by group: latest version known to be complete
  FetchOrder order_;
  std::vector<Slot> slots_;  // of order_
  std::deque<Transfer> fetches_under_way_;
  std::vector<Part> parts_;  // of a fetch
  uint64_t version_ = 0;
  uint64_t num_closes_ = 0;
  uint64_t num_gathers_ = 0;
  std::optional<PackedWeights> packed_;
};

}  // namespace tessera
