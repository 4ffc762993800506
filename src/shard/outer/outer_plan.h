// The plan of which ranks exchange which weights and when, if nodes train on their own between exchanges
// (shard/layout/outer_settings.h), and the memory and traffic of that.
//
// Within a node parameters are sharded as in a job of that node alone. The ranks with the same local rank on
// all nodes therefore keep the same elements, and own a part of them each: for its part a rank keeps the
// outer momentum and writes it to checkpoints. Both are cut into pieces:
//
//      elements of a group      |        kept by local rank 0       |        kept by local rank 1       |
//      pieces                   |     piece 0     |     piece 1     |     piece 2     |     piece 3     |
//      owner, of two nodes      | node 0 | node 1 | node 0 | node 1 | node 0 | node 1 | node 0 | node 1 |
#pragma once

#include <cstdint>
#include <vector>

#include "shard/layout/memory_item.h"
#include "shard/layout/outer_settings.h"
#include "shard/layout/shard_plan.h"
#include "shard/layout/zero_memory.h"

namespace tessera {

// Elements exchanged at a time: large enough to keep a slow network busy while the next ones are prepared.
inline constexpr int64_t kOuterPieceElements = int64_t{1} << 24;

class OuterPlan {
 public:
  // For this local rank. settings.outer must be set, and the optimizer's state elementwise.
  OuterPlan(const ZeroLayout& layout, const ZeroSettings& settings, int local_rank,
            int64_t piece_elements = kOuterPieceElements);

  // Pieces of the elements that this local rank keeps, in ascending order.
  int64_t num_pieces() const { return cuts_.num_groups(); }
  Part piece(int64_t index) const { return cuts_.group(index); }
  Part owned(int64_t index, int node) const { return cuts_.part(index, node); }
  int64_t num_kept() const { return cuts_.num_elements(); }
  int64_t num_owned(int node) const { return cuts_.shard_elements(node); }
  int num_nodes() const { return cuts_.num_nodes(); }

  // The pieces of a fragment, ascending: those of every num_fragments-th group.
  const std::vector<int64_t>& fragment(int64_t index) const { return fragments_[static_cast<size_t>(index)]; }
  int64_t num_fragments() const { return static_cast<int64_t>(fragments_.size()); }
  // Whether an exchange of the fragment begins after `num_updates` updates.
  bool begins(int64_t fragment, int64_t num_updates) const;
  // The place of a piece in a buffer of num_buffered() elements. All pieces of a fragment are there at the
  // same time if its exchange is spread over several updates, otherwise each piece and its successor.
  int64_t buffer_begin(int64_t index) const { return buffer_begin_[static_cast<size_t>(index)]; }
  int64_t num_buffered() const { return num_buffered_; }

 private:
  void plan_buffers();

  OuterSettings settings_;
  std::vector<std::vector<int64_t>> fragments_;
  ShardPlan cuts_;  // of the pieces, over the nodes
  std::vector<int64_t> buffer_begin_;
  int64_t num_buffered_ = 0;
};

// Bytes of what a rank keeps for it, on the rank that has the most.
struct OuterMemory {
  int64_t weight_bytes = 0;    // float32, of the elements it keeps
  int64_t momentum_bytes = 0;  // float32, of those it owns
  int64_t buffer_bytes = 0;    // float32 differences and what travels back
  int64_t feedback_bytes = 0;  // errors of quantized differences: BF16
};
OuterMemory outer_memory(const ZeroLayout& layout, const ZeroSettings& settings);
std::vector<MemoryItem> outer_memory_items(const ZeroLayout& layout, const ZeroSettings& settings);

// Payload between nodes for one exchange of everything: differences are reduced, in network_dtype or in
// blocks of codes, and updates gathered in network_dtype.
WireBytes outer_wire_bytes(const ZeroLayout& layout, const ZeroSettings& settings, int node_rank);
// wire_bytes_per_step() or, where nodes train on their own, the mean over the steps between two exchanges.
WireBytes mean_wire_bytes(const ZeroLayout& layout, const ZeroSettings& settings, int node_rank);

}  // namespace tessera
