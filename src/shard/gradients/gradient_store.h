// Gradients on their way from the ranks that compute them to the ranks that own them, in memory of the host.
//
// A rank's share of a group consists of the parts owned by its rail, the ranks with the same local rank on
// all nodes: the rank sums its share over the ranks of the node, in float32 and in rank order; then the ranks
// of a rail send each other what they own, in settings.network_dtype, and add in node order. So every byte
// crosses the network once, and the result does not depend on timing.
//
// Sums stay on the node until the step ends (accumulates_whole_gradient), or go to their owners in every
// pass. If a rank is alone on its node and accumulates whole gradients, its model writes directly into the
// sums.
//
// Quantized gradients (gradient_blocks.h) leave an error with the rank that sends, one for each element of
// its share in feedback_, which is added to the next sum of the group. For its own part a rank has errors
// only after settle_feedback(), which hands all errors to the owners, who save them. They are added to the
// next sum and stay in memory until they are settled again, as a checkpoint may still be reading them.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <functional>
#include <span>
#include <vector>

#include "base/memory.h"
#include "comm/communicator.h"
#include "kernels/rank_sum/rank_sum.h"
#include "platform/thread_pool.h"
#include "shard/gradients/gradient_path.h"
#include "shard/layout/shard_plan.h"
#include "shard/layout/zero_memory.h"
#include "tensor/tensor_view.h"

namespace tessera {

class GradientStore final : public GradientPath {
 public:
  // Collective; allocates. The communicator and the pool must outlive this. With optimizer_in_backward,
  // `on_sum` is called from close(), open() and finish_pass() for each group whose sum over all ranks is
  // complete in this rank's part of gradients(), until it returns. No rank uses the group's weights any more
  // in this pass. Such a step has one pass, and with several nodes stage 2 or 3.
  GradientStore(const ZeroLayout& layout, const ZeroSettings& settings, const ShardPlan& plan,
                Communicator& comm, ThreadPool& pool, OnSum on_sum = {});

  // The model adds to the results of earlier passes (in all passes but the first); otherwise it overwrites.
  bool model_accumulates() const { return direct_; }

  Update begin_pass(bool is_first, bool is_last, bool is_ignored = false) override;
  std::byte* open(int64_t group) override;
  void close(int64_t group) override;
  std::span<std::byte> opened_memory() const override {
    return direct_ ? accumulators_.as<std::byte>() : in_flight_.as<std::byte>();
  }
  // After the last pass, without on_sum, the sums over all ranks are complete in this rank's parts of
  // gradients(); in stage 0, in its whole share.
  void finish_pass() override;

  // The gradients in the accumulators' type, and the index in them of element `element` of the flat array,
  // which must be in this rank's parts (in stage 0: its share).
  ConstTensorView gradients() const override;
  int64_t index(int64_t group, int64_t element) const override;

  bool has_feedback() const { return has_feedback_; }
  // Collective, between steps: the errors of all ranks for an element are added up at its owner, in the order
  // of nodes and rounded once; those of other ranks become 0. `before_change` is called before own errors
  // change.
  void settle_feedback(const std::function<void()>& before_change);
  // The step was given up: the errors of its sums do not count, nor do errors of earlier steps that were sent
  // with them.
  void discard_feedback();
  // This rank's errors of elements of its own parts, once they are settled or to be so. feedback_written()
  // must follow the last write_feedback().
  void read_feedback(int64_t group, int64_t element, std::span<float> values) const;
  void write_feedback(int64_t group, int64_t element, std::span<const float> values);
  void feedback_written();

 private:
  // One of the buffers, on every rank of the node, into which the model writes a group.
  struct Slot {
    int64_t offset = 0;     // elements from the start of a rank's buffers
    uint64_t last_use = 0;  // number of the last group closed in it
  };
  // A rank's share of a group: the parts of its rail by node, then its own of divided experts; and where they
  // are in the share. A rank alone on its node has it where the model writes the group; otherwise the parts
  // are back to back.
  struct Share {
    std::vector<Part> elements, places;
    int64_t size = 0;
    int64_t own_size = 0;

    // Of the rail.
    std::span<const Part> exchanged() const { return std::span(places).first(places.size() - 1); }
  };
  // Closed by this rank but not yet summed.
  struct Closed {
    int64_t group;
    uint64_t number;  // sequence number of the closed group
  };
  // On the network; its sum goes to the accumulators once it has arrived.
  struct Reduction {
    NetworkGroup::Ticket ticket;
    int64_t group;
    float* data;      // the share
    uint64_t number;  // of the closed group
    Update update;    // of the accumulators
  };

  Slot& slot_of(int64_t group);
  float* slot_data(int local_rank, int64_t group) const;
  int64_t share_size(int64_t group) const { return share(group).size; }
  Share share_of(int64_t group) const;
  const Share& share(int64_t group) const { return shares_[static_cast<size_t>(group)]; }
  // The places of this rank's own parts in its share: what the network sums, and experts.
  std::array<Part, 2> own_in_share(int64_t group) const;
  // Sums the oldest closed group over the ranks of the node.
  void sum_next();
  // Calls body(inputs, begin in the share, size) for each part of a group's share; the inputs are the buffers
  // of all ranks of the node.
  template <typename Body>
  void for_each_part(int64_t group, const Body& body);
  // Accumulators [begin, begin + count) = or += the sum of the inputs.
  void accumulate(std::span<const RankInput> inputs, Update update, int64_t begin, int64_t count);
  void sum_into_accumulators(int64_t group);
  // The share summed over all passes so far, or over this pass only if accumulators hold just this rank's own
  // part.
  void sum_into_staging(int64_t group, float* to);
  float* take_staging();
  bool reduces_in_place() const { return whole_ && settings_.gradient_dtype == DType::kF32; }
  float* accumulators_f32(int64_t index) const { return accumulators_.as<float>().data() + index; }
  bf16* accumulators_bf16(int64_t index) const { return accumulators_.as<bf16>().data() + index; }
  void start_reduction(int64_t group, float* share, uint64_t number, Update update);
  void finish_oldest_reduction();
  void share_sums();
  void plan_feedback(const ZeroLayout& layout);
  bf16* feedback_of(int64_t group) const {
    return feedback_.as<bf16>().data() + feedback_begin_[static_cast<size_t>(group)];
  }
  bf16* own_feedback(int64_t group, int64_t element) const;
  void clear_sent_feedback();
  GradientFeedback next_feedback(int64_t group);

  ZeroSettings settings_;
  ShardPlan plan_;
  Communicator* comm_;
  ThreadPool* pool_;
  OnSum on_sum_;
  bool direct_;
  bool whole_;  // accumulators hold the share, not just the own part
  bool uses_network_;
  bool has_feedback_;
  int num_ranks_;  // of the node
  int local_rank_;
  int64_t elements_per_rank_ = 0;  // in the buffers in flight
  PageBuffer in_flight_;
  SharedCounters counters_;
  std::vector<Slot> slots_;
  std::vector<size_t> slot_index_;  // by group
  PageBuffer accumulators_;
  std::vector<int64_t> accumulator_begin_;  // by group
  std::vector<Share> shares_;               // by group
  PageBuffer staging_;                      // shares on the network if accumulators have no room for them
  PageBuffer rounding_;                     // BF16 accumulators: float32 sums before they are rounded
  std::vector<std::byte*> staging_free_;
  PageBuffer feedback_;                  // BF16, the shares of all groups
  std::vector<int64_t> feedback_begin_;  // by group
  std::vector<std::vector<Part>> gaps_;  // by group: of its share, between parameters
  std::vector<bool> has_own_feedback_;   // by group: not added to a sum yet
  bool is_settled_ = true;
  bool keeps_feedback_ = false;
  std::deque<Closed> closed_;
  std::deque<Reduction> reductions_;
  uint64_t num_closed_ = 0;
  uint64_t num_summed_ = 0;
  bool is_first_pass_ = true;
  bool is_last_pass_ = true;
  std::vector<RankInput> inputs_, block_inputs_;
};

}  // namespace tessera
