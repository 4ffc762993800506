#include "zero/shard_plan.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

const std::vector<Part> kGroups = {{0, 1000}, {1024, 1024 + 33}, {1088, 1088}, {1088, 1088 + 4096}};

TEST(ShardPlan, PartsCoverEveryGroupOnceInTheOrderOfRanks) {
  for (int nodes = 1; nodes <= 4; ++nodes) {
    for (int local = 1; local <= 4; ++local) {
      const ShardPlan plan(kGroups, 32, nodes, local);
      int64_t total = 0;
      for (int64_t g = 0; g < plan.num_groups(); ++g) {
        int64_t at = plan.group(g).begin;
        for (int rank = 0; rank < plan.world_size(); ++rank) {
          const Part part = plan.part(g, rank);
          EXPECT_EQ(part.begin, at) << "group " << g << " rank " << rank << " of " << nodes << " x " << local;
          at = part.end;
          total += part.size();
        }
        EXPECT_EQ(at, plan.group(g).end);
      }
      EXPECT_EQ(total, plan.num_elements());
    }
  }
}

TEST(ShardPlan, CutsAreAlignedFromTheBeginningOfTheGroup) {
  const ShardPlan plan(kGroups, 32, 3, 1);
  for (int64_t g = 0; g < plan.num_groups(); ++g) {
    for (int rank = 0; rank < 3; ++rank) {
      const Part part = plan.part(g, rank);
      if (part.end == plan.group(g).end) continue;
      EXPECT_EQ((part.end - plan.group(g).begin) % 32, 0);
    }
  }
}

TEST(ShardPlan, NodePartsAndRailPartsAreThePartsOfTheirRanks) {
  const ShardPlan plan(kGroups, 32, 2, 2);
  EXPECT_EQ(plan.node_part(0, 0).begin, 0);
  EXPECT_EQ(plan.node_part(0, 0).end, plan.part(0, 1).end);
  EXPECT_EQ(plan.node_part(0, 1).end, 1000);
  const std::vector<Part> rail = plan.rail_parts(0, 1);
  ASSERT_EQ(rail.size(), 2u);
  EXPECT_EQ(rail[0].begin, plan.part(0, 1).begin);
  EXPECT_EQ(rail[1].begin, plan.part(0, 3).begin);
}

TEST(ShardPlan, ShardsAddUpAndTheFirstIsTheLargest) {
  const ShardPlan plan(kGroups, 32, 3, 2);
  int64_t total = 0;
  for (int rank = 0; rank < plan.world_size(); ++rank) {
    total += plan.shard_elements(rank);
    EXPECT_LE(plan.shard_elements(rank), plan.largest_shard());
  }
  EXPECT_EQ(total, plan.num_elements());
  EXPECT_EQ(plan.largest_group(), 4096);
}

}  // namespace
}  // namespace tessera
