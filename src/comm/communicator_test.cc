// Sums over all ranks of a job. Ranks are threads.
#include "comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "support/ranks/rank_test_support.h"

namespace tessera {
namespace {

using testing::Each;

struct TestValue {
  int64_t count;
  float share;
  bool flag;
};

TEST(TypedCollectives, GiveEveryRankTheValuesOfAll) {
  for (const auto& [num_nodes, local] :
       {std::pair(1, 1), std::pair(1, 3), std::pair(2, 2), std::pair(3, 1)}) {
    const int world_size = num_nodes * local;
    const auto errors = run_communicators(num_nodes, local, {}, [&](Communicator& comm) {
      const int rank = comm.world().rank;
      for (int round = 1; round <= 5; ++round) {
        const auto values =
            comm.all_gather(TestValue{int64_t{1} << 60 | rank * round, 0.5f, rank == 1}, {"test"});
        ASSERT_EQ(std::ssize(values), world_size);
        for (int other = 0; other < world_size; ++other) {
          const TestValue& value = values[static_cast<size_t>(other)];
          EXPECT_EQ(value.count, int64_t{1} << 60 | other * round);
          EXPECT_EQ(value.share, 0.5f);
          EXPECT_EQ(value.flag, other == 1);
        }
        EXPECT_EQ(comm.sum(int64_t{rank * round}, {"test"}), round * world_size * (world_size - 1) / 2);
        EXPECT_EQ(comm.max(-1.5 * rank, {"test"}), 0);
        EXPECT_EQ(comm.max(rank, {"test"}), world_size - 1);
        EXPECT_EQ(comm.any(rank == world_size - 1, {"test"}), true);
        EXPECT_EQ(comm.any(false, {"test"}), false);
        EXPECT_EQ(comm.all(rank == 0, {"test"}), world_size == 1);
        EXPECT_EQ(comm.all(true, {"test"}), true);
        EXPECT_EQ(comm.broadcast(TestValue{rank, 0.5f, true}, world_size - 1, {"test"}).count,
                  world_size - 1);
        // Longer than one message.
        std::vector<double> sums(150, 1.0 * rank);
        sums.back() = 0.5;
        comm.sum(sums, {"test"});
        EXPECT_EQ(sums.front(), world_size * (world_size - 1) / 2);
        EXPECT_EQ(sums.back(), 0.5 * world_size);
      }
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(BroadcastText, IsThatOfTheRootCutAtItsLimit) {
  for (const auto& [num_nodes, local] : {std::pair(1, 1), std::pair(1, 3), std::pair(2, 2)}) {
    const int root = num_nodes * local - 1;
    const auto errors = run_communicators(num_nodes, local, {}, [&](Communicator& comm) {
      const bool is_root = comm.world().rank == root;
      EXPECT_EQ(comm.broadcast_text(is_root ? "from the last" : "not this", root, {"test"}), "from the last");
      EXPECT_EQ(comm.broadcast_text(is_root ? "" : "nor this", root, {"test"}), "");
      const std::string long_text(2 * kMaxTextBytes, 'x');
      EXPECT_EQ(comm.broadcast_text(is_root ? long_text : "", root, {"test"}),
                long_text.substr(0, kMaxTextBytes));
    });
    EXPECT_THAT(errors, Each(""));
  }
}

TEST(WaitedTime, IsOfThoseWhoWait) {
  for (const auto& [num_nodes, local] : {std::pair(1, 2), std::pair(2, 1)}) {
    const auto errors = run_communicators(num_nodes, local, {}, [](Communicator& comm) {
      comm.barrier({"start"});
      const double before = comm.waited_s();
      const bool is_late = comm.world().rank == 1;
      if (is_late) std::this_thread::sleep_for(std::chrono::milliseconds(300));
      comm.barrier({"test"});
      const double waited_s = comm.waited_s() - before;
      if (is_late) {
        EXPECT_LT(waited_s, 0.2);
      } else {
        EXPECT_GT(waited_s, 0.25);
      }
    });
    EXPECT_THAT(errors, Each(""));
  }
}

}  // namespace
}  // namespace tessera
