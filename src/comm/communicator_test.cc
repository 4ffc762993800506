// Sums over all ranks of a job. Ranks are threads.
#include "comm/communicator.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "comm/rank_test_support.h"

namespace tessera {
namespace {

using testing::Each;

TEST(AllReduceSum, EveryRankKnowsTheSumAndWhatEachPutIn) {
  for (const auto& [num_nodes, local] :
       {std::pair(1, 1), std::pair(1, 3), std::pair(2, 2), std::pair(3, 1)}) {
    const int world_size = num_nodes * local;
    const auto errors = run_communicators(num_nodes, local, {}, [&](Communicator& comm) {
      const int rank = comm.world().rank;
      for (int round = 1; round <= 5; ++round) {
        std::array<double, 2> values = {1.0 * rank * round, 0.5};
        comm.all_reduce_sum(values, {"test"});
        EXPECT_EQ(values[0], round * world_size * (world_size - 1) / 2);
        EXPECT_EQ(values[1], 0.5 * world_size);
        for (int other = 0; other < world_size; ++other) {
          EXPECT_EQ(comm.summand(other, 0), other * round);
          EXPECT_EQ(comm.summand(other, 1), 0.5);
        }
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
