#include "context/context_team.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace tessera {
namespace {

using testing::HasSubstr;

World rank_of(int num_nodes, int local_world_size, int rank) {
  World world;
  world.rank = rank;
  world.world_size = num_nodes * local_world_size;
  world.local_world_size = local_world_size;
  world.local_rank = rank % local_world_size;
  world.num_nodes = num_nodes;
  world.node_rank = rank / local_world_size;
  return world;
}

// Members are consecutive ranks, and where a team says a member is, that member is.
TEST(ContextTeam, ConsistsOfConsecutiveRanks) {
  struct Case {
    int num_nodes, local_world_size, size, nodes_of_team;
  };
  for (const Case& of : {Case{1, 1, 1, 1}, Case{1, 4, 2, 1}, Case{1, 4, 4, 1}, Case{2, 2, 2, 1},
                         Case{2, 2, 4, 2}, Case{4, 1, 2, 2}, Case{4, 2, 4, 2}, Case{6, 2, 6, 3}}) {
    for (int rank = 0; rank < of.num_nodes * of.local_world_size; ++rank) {
      SCOPED_TRACE(fmt::format("rank {} of {} nodes of {}, teams of {}", rank, of.num_nodes,
                               of.local_world_size, of.size));
      const ContextTeam team = context_team(rank_of(of.num_nodes, of.local_world_size, rank), of.size);
      EXPECT_EQ(team.size, of.size);
      EXPECT_EQ(team.index, rank % of.size);
      EXPECT_EQ(team.num_nodes, of.nodes_of_team);
      EXPECT_EQ(team.num_nodes * team.local_size, of.size);
      const int first = rank - team.index;
      EXPECT_EQ(team.first_node * of.local_world_size + team.first_local_rank, first);
      EXPECT_EQ((team.first_node + team.node()) * of.local_world_size + team.first_local_rank + team.local(),
                rank);
    }
  }
}

TEST(ContextTeam, NeedsRanksThatDivideEvenly) {
  EXPECT_EQ(context_team_refusal(3, 4, 1), "");
  EXPECT_EQ(context_team_refusal(3, 4, 2), "");
  EXPECT_EQ(context_team_refusal(4, 2, 8), "");
  EXPECT_THAT(context_team_refusal(1, 3, 2),
              HasSubstr("a divisor of the ranks of a node, found 3 ranks on one node"));
  EXPECT_THAT(context_team_refusal(3, 2, 4), HasSubstr("found 2 ranks on each of 3 nodes"));
  EXPECT_THAT(context_team_refusal(2, 2, 3), HasSubstr("expected all ranks of a number of nodes"));
  EXPECT_THROW(context_team(rank_of(1, 3, 0), 2), Error);
}

TEST(ContextTeam, SharesOutHeads) {
  const AttentionShape shape = {
      .num_heads = 32, .num_key_value_heads = 8, .head_dim = 128, .sliding_window = 5, .scale = 2};
  EXPECT_EQ(context_heads_refusal(shape, 8), "");
  EXPECT_EQ(context_heads_refusal(shape, 16), "");
  EXPECT_THAT(context_heads_refusal(shape, 12), HasSubstr("found 8 key-value heads and 32 query heads"));
  EXPECT_THAT(context_heads_refusal(shape, 64), HasSubstr("found 8 key-value heads and 32 query heads"));
  const AttentionShape own = heads_of_member(shape, 4);
  EXPECT_EQ(own.num_heads, 8);
  EXPECT_EQ(own.num_key_value_heads, 2);
  EXPECT_EQ(own.head_dim, 128);
  EXPECT_EQ(own.sliding_window, 5);
  EXPECT_EQ(readers_of_key_value_head(shape, 4), 1);
  EXPECT_EQ(heads_of_member(shape, 32).num_heads, 1);
  EXPECT_EQ(heads_of_member(shape, 32).num_key_value_heads, 1);
  EXPECT_EQ(readers_of_key_value_head(shape, 32), 4);
}

}  // namespace
}  // namespace tessera
