#include "shard/layout/shard_plan.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/divide_up.h"
#include "base/rng.h"

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

// Random layouts: no cut falls into an indivisible range, and the ranks own about the same where that is
// possible.
TEST(ShardPlan, IndivisibleRangesHaveOneOwnerEach) {
  const CounterRng random(7, 0);
  uint64_t draws = 0;
  const auto number = [&](int64_t last) {
    return static_cast<int64_t>(random.uniform(draws++) * static_cast<float>(last + 1));
  };
  for (int job = 0; job < 200; ++job) {
    std::vector<Part> groups, indivisible;
    int64_t at = 0, largest = 1;
    for (int64_t left = 2 + number(8); left > 0; --left) {
      const int64_t begin = at;
      for (int64_t ranges = number(7); ranges > 0; --ranges) {
        at += number(1) * number(100);  // may be cut, or a gap
        const int64_t size = 1 + number(3000);
        indivisible.push_back({at, at + size});
        largest = std::max(largest, size);
        at += size;
      }
      groups.push_back({begin, at});
    }
    const ShardPlan plan(groups, 32, static_cast<int>(1 + number(3)), static_cast<int>(1 + number(3)),
                         indivisible);
    int64_t total = 0;
    for (int64_t g = 0; g < plan.num_groups(); ++g) {
      int64_t end = plan.group(g).begin;
      for (int rank = 0; rank < plan.world_size(); ++rank) {
        const Part part = plan.part(g, rank);
        EXPECT_EQ(part.begin, end);
        end = part.end;
        for (const Part& range : indivisible) {
          EXPECT_FALSE(range.begin < part.begin && part.begin < range.end) << part.begin;
        }
      }
      EXPECT_EQ(end, plan.group(g).end);
    }
    for (int rank = 0; rank < plan.world_size(); ++rank) {
      total += plan.shard_elements(rank);
      EXPECT_LE(plan.shard_elements(rank), plan.largest_shard());
    }
    EXPECT_EQ(total, plan.num_elements());
    EXPECT_LE(plan.largest_shard(), divide_up(total, plan.world_size()) + 4 * largest);
  }
}

// The matrices of Llama 3 8B, with an embedding that Adafactor does not cut.
TEST(ShardPlan, LayersMakeUpForWhatLargeRangesLeave) {
  std::vector<Part> groups, indivisible;
  int64_t at = 0;
  const auto add_group = [&](const std::vector<int64_t>& sizes) {
    groups.push_back({at, at});
    for (const int64_t size : sizes) {
      indivisible.push_back({at, at + size});
      at += size;
    }
    groups.back().end = at;
  };
  constexpr int64_t kD = 4096, kF = 14336, kV = 128256;
  add_group({kV * kD});
  for (int layer = 0; layer < 32; ++layer) {
    add_group({kD, kD * kD, kD * kD / 4, kD * kD / 4, kD * kD, kD, kF * kD, kF * kD, kD * kF});
  }
  add_group({kD, kV * kD});
  for (const int world_size : {2, 3, 4, 8, 16}) {
    const ShardPlan plan(groups, 32, world_size, 1, indivisible);
    const double mean = static_cast<double>(at) / world_size;
    EXPECT_LT(static_cast<double>(plan.largest_shard()), 1.1 * mean) << world_size << " ranks";
  }
}

}  // namespace
}  // namespace tessera
