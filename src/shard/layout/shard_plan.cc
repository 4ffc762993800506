#include "shard/layout/shard_plan.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "base/divide_up.h"
#include "base/error.h"
#include "base/memory.h"
#include "ops/expert_exchange.h"

namespace tessera {
namespace {

// The share of one of `count` owners of a range, all of the same size but for the last ones.
Part share_of(const Part& range, int64_t alignment, int64_t count, int64_t index) {
  const int64_t share = round_up(divide_up(range.size(), count), alignment);
  const int64_t begin = std::min(index * share, range.size());
  return {range.begin + begin, range.begin + std::min(begin + share, range.size())};
}

}  // namespace

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

ShardPlan::ShardPlan(std::vector<Part> groups, int64_t alignment, int num_nodes, int local_world_size,
                     const std::vector<Part>& indivisible)
    : ShardPlan(std::move(groups), alignment, num_nodes, local_world_size) {
  // Groups of the largest indivisible ranges first: the others make up for the inequality that these leave.
  std::vector<int64_t> largest(groups_.size());
  for (const Part& range : indivisible) {
    const auto after = std::ranges::upper_bound(groups_, range.begin, {}, &Part::begin);
    TESSERA_CHECK(after != groups_.begin() && range.end <= (after - 1)->end, "[{}, {}) is in no group",
                  range.begin, range.end);
    int64_t& size = largest[static_cast<size_t>(after - 1 - groups_.begin())];
    size = std::max(size, range.size());
  }
  std::vector<size_t> order(groups_.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater(), [&](size_t group) { return largest[group]; });
  cuts_.resize(groups_.size());
  std::vector<int64_t> owned(static_cast<size_t>(world_size()));
  for (const size_t group : order) cut_group(group, indivisible, &owned);
}

ShardPlan::ShardPlan(std::vector<Part> groups, int64_t alignment, int num_nodes, int local_world_size,
                     std::vector<std::vector<int64_t>> expert_begins)
    : ShardPlan(std::move(groups), alignment, num_nodes, local_world_size) {
  TESSERA_CHECK(expert_begins.size() == groups_.size(), "experts of {} groups", expert_begins.size());
  expert_begins_ = std::move(expert_begins);
}

// Gives the ranks with the least so much of the group that they all end with the same; then moves each cut
// out of an indivisible range, to its nearer end.
void ShardPlan::cut_group(size_t group, const std::vector<Part>& indivisible, std::vector<int64_t>* owned) {
  const Part range = groups_[group];
  std::vector<int64_t> ascending = *owned;
  std::ranges::sort(ascending);
  // The first `count` ranks of these rise to the same level.
  int64_t level = 0, sum = range.size();
  for (size_t count = 1; count <= ascending.size(); ++count) {
    sum += ascending[count - 1];
    level = divide_up(sum, static_cast<int64_t>(count));
    if (count == ascending.size() || level <= ascending[count]) break;
  }
  std::vector<int64_t>& cuts = cuts_[group];
  cuts.push_back(range.begin);
  int64_t wanted = range.begin;
  for (int64_t& has : *owned) {
    wanted += std::max<int64_t>(level - has, 0);
    int64_t cut = std::min(range.begin + round_up(wanted - range.begin, alignment_), range.end);
    const auto after = std::ranges::upper_bound(indivisible, cut, {}, &Part::begin);
    if (after != indivisible.begin() && cut < (after - 1)->end) {
      const Part around = *(after - 1);
      cut = cut - around.begin < around.end - cut ? around.begin : around.end;
    }
    cut = std::max(cut, cuts.back());
    has += cut - cuts.back();
    cuts.push_back(cut);
  }
  owned->back() += range.end - cuts.back();
  cuts.back() = range.end;
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

Part ShardPlan::exchanged(int64_t group) const {
  const Part range = this->group(group);
  if (!divides_experts() || expert_begins_[static_cast<size_t>(group)].empty()) return range;
  return {range.begin, expert_begins_[static_cast<size_t>(group)].front()};
}

Part ShardPlan::node_expert_part(int64_t group, int node_rank) const {
  const int64_t end = this->group(group).end;
  if (!divides_experts()) return {end, end};
  const std::vector<int64_t>& begins = expert_begins_[static_cast<size_t>(group)];
  const ExpertRange experts = experts_of_node(std::ssize(begins), num_nodes_, node_rank);
  const auto begin_of = [&](int64_t expert) {
    return expert < std::ssize(begins) ? begins[static_cast<size_t>(expert)] : end;
  };
  return {begin_of(experts.begin), begin_of(experts.end)};
}

Part ShardPlan::expert_part(int64_t group, int rank) const {
  return share_of(node_expert_part(group, rank / local_world_size_), alignment_, local_world_size_,
                  rank % local_world_size_);
}

Part ShardPlan::part(int64_t group, int rank) const {
  TESSERA_CHECK(0 <= rank && rank < world_size(), "rank {} of {}", rank, world_size());
  if (!cuts_.empty()) {
    const std::vector<int64_t>& cuts = cuts_[static_cast<size_t>(group)];
    return {cuts[static_cast<size_t>(rank)], cuts[static_cast<size_t>(rank) + 1]};
  }
  return share_of(exchanged(group), alignment_, world_size(), rank);
}

Part ShardPlan::node_part(int64_t group, int node_rank) const {
  const int first = node_rank * local_world_size_;
  return {part(group, first).begin, part(group, first + local_world_size_ - 1).end};
}

int64_t ShardPlan::shard_elements(int rank) const {
  int64_t count = 0;
  for (int64_t g = 0; g < num_groups(); ++g) count += part(g, rank).size() + expert_part(g, rank).size();
  return count;
}

int64_t ShardPlan::node_elements(int node_rank) const {
  int64_t count = 0;
  for (int64_t g = 0; g < num_groups(); ++g)
    count += node_part(g, node_rank).size() + node_expert_part(g, node_rank).size();
  return count;
}

// Parts of equal size are cut from the front, so the first rank and the first node have the most.
int64_t ShardPlan::largest_shard() const {
  int64_t largest = 0;
  for (int rank = 0; rank < num_candidates(); ++rank) largest = std::max(largest, shard_elements(rank));
  return largest;
}

int64_t ShardPlan::largest_part() const {
  int64_t largest = 0;
  for (int64_t group = 0; group < num_groups(); ++group) {
    for (int rank = 0; rank < num_candidates(); ++rank)
      largest = std::max(largest, part(group, rank).size() + expert_part(group, rank).size());
  }
  return largest;
}

int64_t ShardPlan::largest_node_share() const {
  int64_t largest = 0;
  for (int node = 0; node < divide_up(num_candidates(), local_world_size_); ++node) {
    largest = std::max(largest, node_elements(node));
  }
  return largest;
}

std::vector<Part> ShardPlan::rail_parts(int64_t group, int local_rank) const {
  std::vector<Part> parts;
  for (int node = 0; node < num_nodes_; ++node) {
    parts.push_back(rail_part(group, node, local_rank));
  }
  return parts;
}

}  // namespace tessera
