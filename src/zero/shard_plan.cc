#include "zero/shard_plan.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "base/memory.h"

namespace tessera {

ShardPlan::ShardPlan(std::vector<Part> groups, int64_t alignment, int num_nodes, int local_world_size)
    : groups_(std::move(groups)),
      alignment_(alignment),
      num_nodes_(num_nodes),
      local_world_size_(local_world_size) {
  TESSERA_CHECK(alignment > 0 && num_nodes > 0 && local_world_size > 0, "alignment {}, {} nodes of {} ranks",
                alignment, num_nodes, local_world_size);
  int64_t end = 0;
  for (const Part& group : groups_) {
    TESSERA_CHECK(end <= group.begin && group.begin <= group.end, "group [{}, {}) behind {}", group.begin,
                  group.end, end);
    end = group.end;
  }
}

int64_t ShardPlan::num_elements() const {
  int64_t count = 0;
  for (const Part& group : groups_) count += group.size();
  return count;
}

int64_t ShardPlan::largest_group() const {
  int64_t largest = 0;
  for (const Part& group : groups_) largest = std::max(largest, group.size());
  return largest;
}

Part ShardPlan::part(int64_t group, int rank) const {
  TESSERA_CHECK(0 <= rank && rank < world_size(), "rank {} of {}", rank, world_size());
  const Part range = this->group(group);
  const int64_t share = round_up((range.size() + world_size() - 1) / world_size(), alignment_);
  const int64_t begin = std::min(rank * share, range.size());
  const int64_t end = std::min(begin + share, range.size());
  return {range.begin + begin, range.begin + end};
}

Part ShardPlan::node_part(int64_t group, int node_rank) const {
  const int first = node_rank * local_world_size_;
  return {part(group, first).begin, part(group, first + local_world_size_ - 1).end};
}

int64_t ShardPlan::shard_elements(int rank) const {
  int64_t count = 0;
  for (int64_t g = 0; g < num_groups(); ++g) count += part(g, rank).size();
  return count;
}

int64_t ShardPlan::node_elements(int node_rank) const {
  int64_t count = 0;
  for (int64_t g = 0; g < num_groups(); ++g) count += node_part(g, node_rank).size();
  return count;
}

// Parts are cut from the front, so the first rank and the first node have the most.
int64_t ShardPlan::largest_shard() const { return shard_elements(0); }
int64_t ShardPlan::largest_node_share() const { return node_elements(0); }

std::vector<Part> ShardPlan::rail_parts(int64_t group, int local_rank) const {
  std::vector<Part> parts;
  for (int node = 0; node < num_nodes_; ++node) {
    parts.push_back(rail_part(group, node, local_rank));
  }
  return parts;
}

}  // namespace tessera
