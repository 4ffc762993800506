#include "context/context_team.h"

#include <algorithm>

#include "base/error.h"
#include "base/text.h"

namespace tessera {

std::string context_team_refusal(int num_nodes, int local_world_size, int64_t size) {
  if (size == 1) return "";
  const std::string found =
      fmt::format("found {} on {}", count_of(local_world_size, "rank"),
                  num_nodes == 1 ? "one node" : fmt::format("each of {}", count_of(num_nodes, "node")));
  if (size <= local_world_size) {
    if (local_world_size % size == 0) return "";
    return fmt::format("context_parallel_size {}: expected a divisor of the ranks of a node, {}", size,
                       found);
  }
  if (size % local_world_size == 0 && num_nodes % (size / local_world_size) == 0) return "";
  return fmt::format(
      "context_parallel_size {}: expected all ranks of a number of nodes that divides those of the job, {}",
      size, found);
}

std::string context_heads_refusal(const AttentionShape& shape, int64_t size) {
  const int64_t queries = shape.num_heads, keys = shape.num_key_value_heads;
  if (queries % size == 0 && (keys % size == 0 || size % keys == 0)) return "";
  return fmt::format(
      "context_parallel_size {}: expected a divisor of the model's key-value heads, or a multiple of them "
      "that "
      "divides its query heads, for the ranks of a row to share them out; found {} and {}",
      size, count_of(keys, "key-value head"), count_of(queries, "query head"));
}

ContextTeam context_team(const World& world, int64_t size) {
  const std::string refusal = context_team_refusal(world.num_nodes, world.local_world_size, size);
  if (!refusal.empty()) fail(ExitCode::kBadConfig, "{}", refusal);
  ContextTeam team;
  team.size = static_cast<int>(size);
  team.index = world.rank % team.size;
  team.local_size = std::min(team.size, world.local_world_size);
  team.num_nodes = team.size / team.local_size;
  team.first_node = world.node_rank / team.num_nodes * team.num_nodes;
  team.first_local_rank = world.local_rank / team.local_size * team.local_size;
  return team;
}

AttentionShape heads_of_member(const AttentionShape& shape, int64_t size) {
  AttentionShape own = shape;
  own.num_heads /= size;
  own.num_key_value_heads = std::max<int64_t>(1, own.num_key_value_heads / size);
  return own;
}

int64_t readers_of_key_value_head(const AttentionShape& shape, int64_t size) {
  return std::max<int64_t>(1, size / shape.num_key_value_heads);
}

}  // namespace tessera
