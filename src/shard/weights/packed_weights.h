// The packed forms of the weights (kernels/gemm/linear_weight.h), once per node: after every update the ranks
// of the node make them together, group by group in the order in which the forward pass opens them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "comm/node/node_group.h"
#include "platform/thread_pool.h"

namespace tessera {

class PackedWeights {
 public:
  // Makes share local_rank of local_world_size of the forms of a group whose elements are at `weights`.
  using PackShare = std::function<void(int64_t group, std::byte* weights)>;
  // The weights, which the node has in full: whether a group has arrived, and where it is once it has.
  struct Weights {
    std::function<bool(int64_t group)> is_complete;
    std::function<std::byte*(int64_t group)> open;
  };

  // Collective; allocates bytes_by_group, 0 for a group without forms. Arguments passed by reference must
  // outlive this.
  PackedWeights(std::span<const int64_t> bytes_by_group, NodeGroup& node, ThreadPool& pool, Weights weights,
                PackShare pack_share);

  // The forms of a group; nullptr if it has none.
  std::byte* forms(int64_t group) const { return forms_[static_cast<size_t>(group)]; }

  // Collective. Call once the weights have been updated or loaded and no rank uses the old ones.
  void weights_changed();
  // Returns when the forms of an open group are complete. While it waits, this rank makes its share of them,
  // and of the next groups whose weights have already arrived: the ranks seldom wait for each other, and
  // never for weights that are not needed yet.
  void complete(int64_t group);

 private:
  int64_t num_groups() const { return std::ssize(forms_); }

  Weights weights_;
  PackShare pack_share_;
  PageBuffer memory_;
  SharedCounters counters_;
  std::vector<std::byte*> forms_;  // by group
  int64_t num_packed_ = 0;         // groups whose share this rank has made
  int64_t num_complete_ = 0;       // groups whose forms are known to be complete
  uint64_t version_ = 0;
};

}  // namespace tessera
