// The weights from which nodes start when they train on their own, and the exchange of their progress
// (shard/layout/outer_settings.h). With node k's weights w_k, which were w after the last exchange, K nodes,
// the outer momentum m, learning rate r and momentum b:
//
//   d = (sum over k of w - w_k) / K     w - w_k is sent in network_dtype, or as blocks of codes with
//                                       error feedback; summed in float32, in the order of nodes
//   m = b m + d                         by the owner of the elements
//   u = r (d + b m)                     Nesterov momentum as in torch.optim.SGD; rounded to network_dtype
//   w = w - u                           on every node
//
// All arithmetic is in float32, and the same bits on every node.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/memory.h"
#include "comm/network/network_group.h"
#include "platform/thread_pool.h"
#include "shard/outer/outer_plan.h"

namespace tessera {

// Float32 weights of this node from element `begin` on. Called from several threads for disjoint elements.
struct NodeWeights {
  std::function<void(int64_t begin, std::span<float> values)> read;
  std::function<void(int64_t begin, std::span<const float> values)> write;
};

// Not thread-safe; all ranks make the same calls. A piece is exchanged by begin(), step() and finish(); other
// pieces may be exchanged at the same time if their places in the buffers differ.
class OuterOptimizer {
 public:
  // `rail`: the ranks with this local rank on all nodes, for the exclusive use of this.
  OuterOptimizer(OuterPlan plan, const ZeroSettings& settings, NetworkGroup& rail, ThreadPool& pool);
  // Abandons exchanges that are under way when an error ends the rank.
  ~OuterOptimizer();
  OuterOptimizer(const OuterOptimizer&) = delete;
  OuterOptimizer& operator=(const OuterOptimizer&) = delete;

  const OuterPlan& plan() const { return plan_; }

  // Sends the difference of the node's weights and begins to sum it up. Exactly: errors of quantized
  // differences are sent along and are none afterwards.
  void begin(int64_t piece, const NodeWeights& node, bool exactly = false);
  // Waits for the sum, updates the momentum and begins to send the update.
  void step(int64_t piece);
  // Waits for the update. The outer weights are new, and the node's own become (1 - alpha) of these and alpha
  // of themselves.
  void finish(int64_t piece, const NodeWeights& node, double alpha);
  // The mean over the nodes takes the place of some values of their own, such as an optimizer's moments.
  void average(int64_t piece, const NodeWeights& values, const char* what);

  // The outer weights, of elements that this rank keeps, or the momentum, of elements that it owns. Elements
  // that are not written keep their values.
  enum class Kept { kWeights, kMomentum };
  void read(Kept kept, int64_t begin, std::span<float> values) const;
  void write(Kept kept, int64_t begin, std::span<const float> values);

 private:
  std::span<float> difference(int64_t piece) const;
  std::span<std::byte> update(int64_t piece) const;
  // The parts of all nodes in a piece, in elements from its beginning times `unit`.
  std::vector<Part> parts(int64_t piece, int64_t unit) const;
  Part own_in(int64_t piece) const;
  template <typename Copy>
  int64_t for_each_kept(Kept kept, int64_t begin, int64_t count, const Copy& copy) const;
  bool is_quantized() const { return settings_.quantized_gradients.has_value(); }

  const OuterPlan plan_;
  const ZeroSettings settings_;
  NetworkGroup* rail_;
  ThreadPool* pool_;
  std::vector<int64_t> weight_begin_;    // by piece
  std::vector<int64_t> momentum_begin_;  // by piece
  PageBuffer weights_;
  PageBuffer momentum_;
  PageBuffer feedback_;                        // as weights_, with quantized gradients
  PageBuffer differences_;                     // of the pieces under way
  PageBuffer updates_;                         // likewise, in network_dtype
  std::vector<NetworkGroup::Ticket> tickets_;  // by piece, of its last operation
};

}  // namespace tessera
