// Gradients on their way from the ranks that compute them to the ranks that own them.
//
// A rank's share of a group are the parts of the ranks with its local rank on all nodes (its rail): it sums
// up its share over the ranks of the node, in float32 and in their order; then the ranks of a rail exchange
// what the others own, in settings.network_dtype, and add in the order of nodes. So every byte
// crosses the network once, and the result does not depend on timing.
//
// Sums are complete on the node until the step ends (accumulates_whole_gradient), or go to their owners in
// every pass. A rank that is alone on its node and accumulates whole gradients has its model write into the
// sums themselves.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "base/memory.h"
#include "comm/communicator.h"
#include "kernels/rank_sum/rank_sum.h"
#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"
#include "zero/shard_plan.h"
#include "zero/zero_memory.h"

namespace tessera {

class GradientStore {
 public:
  // Collective; allocates. The communicator and the pool must outlive this.
  GradientStore(const ZeroLayout& layout, const ZeroSettings& settings, const ShardPlan& plan,
                Communicator& comm, ThreadPool& pool);

  // The model adds to what the passes before left (all but the first pass); otherwise it overwrites.
  bool model_accumulates() const { return direct_; }

  void begin_pass(bool is_first, bool is_last);
  // Where the model writes the float32 gradients of a group; until close(). Groups in the order of
  // model/parameter_access.h.
  std::byte* open(int64_t group);
  void close(int64_t group);
  // Behind the last group of a pass: in the last one, the sums of all ranks are complete in this rank's parts
  // of gradients(), and in stage 0 in its whole share.
  void finish_pass();

  // In the accumulators' type; element `element` of the flat array, which must be in this rank's parts (in
  // stage 0: share), in it.
  ConstTensorView gradients() const;
  int64_t index(int64_t group, int64_t element) const;

 private:
  // A buffer of every rank of the node that the model writes a group to.
  struct Slot {
    int64_t offset = 0;     // elements from the beginning of a rank's buffers
    uint64_t last_use = 0;  // number of the group closed last in it
  };
  // Closed by this rank, not summed up yet.
  struct Closed {
    int64_t group;
    uint64_t number;  // counts the groups closed
  };
  // On the network; its sum goes to the accumulators when it has arrived.
  struct Reduction {
    NetworkGroup::Ticket ticket;
    int64_t group;
    float* data;      // the share
    uint64_t number;  // of the group closed
    Update update;    // of the accumulators
  };

  Slot& slot_of(int64_t group);
  float* slot_data(int local_rank, int64_t group) const;
  int64_t share_size(int64_t group) const { return share_parts_[static_cast<size_t>(group)].back().end; }
  Part own_in_share(int64_t group) const;
  // Adds up the oldest closed group over the ranks of the node.
  void sum_next();
  // body(inputs, begin in the share, size) for each part of a group's share: the buffers of all ranks of the
  // node.
  template <typename Body>
  void for_each_part(int64_t group, const Body& body);
  // Accumulators [begin, begin + count) = or += the sum of the inputs.
  void accumulate(std::span<const RankInput> inputs, Update update, int64_t begin, int64_t count);
  void sum_into_accumulators(int64_t group);
  // The share of all passes so far, or of this pass where accumulators hold only the own part.
  void sum_into_staging(int64_t group, float* to);
  float* take_staging();
  bool reduces_in_place() const { return whole_ && settings_.gradient_dtype == DType::kF32; }
  float* accumulators_f32(int64_t index) const { return accumulators_.as<float>().data() + index; }
  bf16* accumulators_bf16(int64_t index) const { return accumulators_.as<bf16>().data() + index; }
  void start_reduction(int64_t group, float* share, uint64_t number, Update update);
  void finish_oldest_reduction();
  void share_sums();

  ZeroSettings settings_;
  ShardPlan plan_;
  Communicator* comm_;
  ThreadPool* pool_;
  bool direct_;
  bool whole_;  // accumulators hold the share, not the own part alone
  bool uses_network_;
  int num_ranks_;  // of the node
  int local_rank_;
  int64_t elements_per_rank_ = 0;  // of the buffers in flight
  SharedSegment in_flight_;
  SharedCounters counters_;
  std::vector<Slot> slots_;
  std::vector<size_t> slot_index_;  // by group
  PageBuffer accumulators_;
  std::vector<int64_t> accumulator_begin_;  // by group
  std::vector<std::vector<Part>>
      share_parts_;      // by group and node: the share, its parts one behind the other
  PageBuffer staging_;   // shares on the network when accumulators have no room for them
  PageBuffer rounding_;  // BF16 accumulators: float32 sums before they are rounded
  std::vector<std::byte*> staging_free_;
  std::deque<Closed> closed_;
  std::deque<Reduction> reductions_;
  uint64_t num_closed_ = 0;
  uint64_t num_summed_ = 0;
  bool is_first_pass_ = true;
  bool is_last_pass_ = true;
  std::vector<RankInput> inputs_, block_inputs_;
};

}  // namespace tessera
