// The assignment of elements in the flat array of parameters to ranks. Every parameter group (embedding,
// layer, head) is cut into one part per rank, in the order of ranks, so that a node's parts are contiguous
// and every layer's work is shared by all. Where experts are divided among nodes, these parts are of what
// precedes the experts of a group, and a rank also has a part of the experts that its node computes.
#pragma once

#include <cstdint>
#include <vector>

#include "comm/network/network_group.h"

namespace tessera {

class ShardPlan {
 public:
  // `groups` are ascending, non-overlapping ranges of the flat array; each is cut into num_nodes *
  // local_world_size parts at multiples of `alignment` elements from its beginning. Small groups leave the
  // last ranks without elements.
  ShardPlan(std::vector<Part> groups, int64_t alignment, int num_nodes, int local_world_size);
  // A plan in which no cut falls into the `indivisible` ranges, ascending and each within a group. Groups are
  // cut so that all ranks own about the same over all groups; any may own nothing of a group.
  ShardPlan(std::vector<Part> groups, int64_t alignment, int num_nodes, int local_world_size,
            const std::vector<Part>& indivisible);
  // A plan in which experts are divided (ops/expert_exchange.h). `expert_begins`: by group, the first element
  // of each expert, the last of which ends with the group; a group may have none.
  ShardPlan(std::vector<Part> groups, int64_t alignment, int num_nodes, int local_world_size,
            std::vector<std::vector<int64_t>> expert_begins);

  int world_size() const { return num_nodes_ * local_world_size_; }
  int num_nodes() const { return num_nodes_; }
  int local_world_size() const { return local_world_size_; }
  int64_t num_groups() const { return static_cast<int64_t>(groups_.size()); }
  Part group(int64_t index) const { return groups_[static_cast<size_t>(index)]; }
  int64_t num_elements() const;  // in all groups
  int64_t largest_group() const;

  // The elements of a group that all nodes use, and that cross the network: all but divided experts.
  Part exchanged(int64_t group) const;
  // The part of these that a rank owns.
  Part part(int64_t group, int rank) const;
  // All parts of a node, contiguous.
  Part node_part(int64_t group, int node_rank) const;
  // The part of divided experts that a rank owns, empty without any; all such parts of a node, contiguous.
  Part expert_part(int64_t group, int rank) const;
  Part node_expert_part(int64_t group, int node_rank) const;
  bool divides_experts() const { return !expert_begins_.empty(); }
  // Elements that a rank or a node owns over all groups.
  int64_t shard_elements(int rank) const;
  int64_t node_elements(int node_rank) const;
  // The number of ranks to compare for the largest share: one, unless cuts depend on what is there.
  int num_candidates() const { return cuts_.empty() && !divides_experts() ? 1 : world_size(); }
  // The most that any rank or node owns.
  int64_t largest_shard() const;
  int64_t largest_part() const;  // of a group
  int64_t largest_node_share() const;
  // The part of the rank with this local rank on a node.
  Part rail_part(int64_t group, int node_rank, int local_rank) const {
    return part(group, node_rank * local_world_size_ + local_rank);
  }
  // These parts on all nodes: what a rail gathers and reduces.
  std::vector<Part> rail_parts(int64_t group, int local_rank) const;

 private:
  void cut_group(size_t group, const std::vector<Part>& indivisible, std::vector<int64_t>* owned);

  std::vector<Part> groups_;
  int64_t alignment_;
  int num_nodes_;
  int local_world_size_;
  // By group, if some ranges are indivisible: where every rank's part begins, plus the end.
  std::vector<std::vector<int64_t>> cuts_;
  std::vector<std::vector<int64_t>> expert_begins_;  // by group, if experts are divided
};

}  // namespace tessera
