#include "launch/job/cpu_assignment.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "fake_machine.h"
#include "support/web/two_sockets.h"

namespace tessera {
namespace {

using testing::HasSubstr;

TEST(Processors, RanksGetWholeCoresOfOneNumaNode) {
  for (const bool hyper_threads : {false, true}) {
    for (const int num_ranks : {2, 4, 8}) {
      SCOPED_TRACE(testing::Message() << num_ranks << " ranks, hyper-threads " << hyper_threads);
      const NodeProcessors node = two_sockets(8, hyper_threads);
      const ProcessorAssignment assignment = assign_processors(node, num_ranks);
      std::vector<int> all;
      for (const RankProcessors& rank : assignment.ranks) {
        EXPECT_EQ(std::ssize(rank.cpus), node.num_online / num_ranks);
        EXPECT_EQ(rank.num_threads, 16 / num_ranks) << "one per core";
        EXPECT_EQ(rank.num_processors, std::ssize(rank.cpus));
        const auto& home = node.numa_nodes[rank.cpus[0] % 16 < 8 ? 0 : 1].cpus;
        for (const int cpu : rank.cpus) {
          EXPECT_NE(std::find(home.begin(), home.end(), cpu), home.end()) << cpu;
          const int sibling = (cpu + 16) % 32;
          const bool has_sibling = std::find(rank.cpus.begin(), rank.cpus.end(), sibling) != rank.cpus.end();
          EXPECT_EQ(has_sibling, hyper_threads) << cpu;
        }
        all.insert(all.end(), rank.cpus.begin(), rank.cpus.end());
      }
      std::sort(all.begin(), all.end());
      EXPECT_EQ(all, node.limits.cpus) << "disjoint";
      EXPECT_EQ(assignment.message, "");
    }
  }
}

TEST(Processors, EveryRankGetsAsMany) {
  const ProcessorAssignment assignment = assign_processors(two_sockets(8, false), 3);
  EXPECT_EQ(assignment.ranks[0].cpus, range(0, 4));
  EXPECT_EQ(assignment.ranks[1].cpus, range(5, 9));
  EXPECT_EQ(assignment.ranks[2].cpus, range(10, 14));
}

TEST(Processors, CgroupLimitIsDivided) {
  const ProcessorAssignment assignment = assign_processors(two_sockets(8, false, 9.5), 2);
  EXPECT_EQ(assignment.ranks[1].cpus, range(8, 15));
  EXPECT_EQ(assignment.ranks[1].num_threads, 4);
  EXPECT_EQ(assign_processors(two_sockets(8, false, 9.5), 1).ranks[0].num_threads, 10);
}

// A mask with three cores of one sub-NUMA cluster and two of another, three of them with one thread only.
TEST(Processors, ACoreIsNotSplitWhateverTheMask) {
  const FakeMachine machine({4, 4, 2});
  const NodeProcessors node = node_processors(machine.root(), {1, 2, 3, 4, 7, 17, 18});
  EXPECT_EQ(num_numa_nodes(node), 2);
  const ProcessorAssignment two = assign_processors(node, 2);
  EXPECT_EQ(two.ranks[0].cpus, (std::vector<int>{1, 2, 17, 18}));
  EXPECT_EQ(two.ranks[0].num_processors, 4);
  EXPECT_EQ(two.ranks[1].cpus, (std::vector<int>{3, 4})) << "a half core counts as one";
  EXPECT_EQ(two.ranks[1].num_threads, 2);
  EXPECT_EQ(two.ranks[1].num_processors, 2);
  EXPECT_EQ(assign_processors(node, 5).ranks[2].cpus, std::vector<int>{3});
}

TEST(Processors, LittleForARankIsSaid) {
  const NodeProcessors node = two_sockets(2, true);  // 4 cores, 8 processors
  EXPECT_EQ(assign_processors(node, 2).message, "");
  const MachineShape shape = {1, 1, 1};
  const NodeProcessors one_core = node_processors(FakeMachine(shape).root(), shape.cpus());
  EXPECT_EQ(assign_processors(one_core, 1).message, "") << "there is nothing faster to advise";
  EXPECT_THAT(assign_processors(node, 4).message, HasSubstr("one core for each of 4 ranks"));
  EXPECT_EQ(assign_processors(node, 4).ranks[3].cpus, (std::vector<int>{3, 7}));
  const ProcessorAssignment eight = assign_processors(node, 8);
  EXPECT_THAT(eight.message, HasSubstr("share a core"));
  EXPECT_EQ(eight.ranks[1].cpus, std::vector<int>{4}) << "the two threads of core 0 are ranks 0 and 1";
  const ProcessorAssignment nine = assign_processors(node, 9);
  EXPECT_THAT(nine.message, HasSubstr("9 ranks share"));
  EXPECT_EQ(nine.ranks[8].cpus, range(0, 7));
  EXPECT_EQ(nine.ranks[8].num_threads, 1);
  EXPECT_THAT(assign_processors(two_sockets(8, false, 1.5), 2).message, HasSubstr("less than a processor"));
}

}  // namespace
}  // namespace tessera
