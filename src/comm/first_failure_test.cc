// An error on some ranks, as seen by all of them. Ranks are threads.
#include "comm/first_failure.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "support/ranks/rank_test_support.h"

namespace tessera {
namespace {

using testing::Each;

const OpLabel kTestLabel = {"test"};

std::optional<Error> error_of(int rank) {
  return Error(rank == 2 ? ExitCode::kIoError : ExitCode::kBadData, fmt::format("disk of {} is full", rank));
}

// Collective: the outcome on this rank if those in `ranks` have an error.
std::optional<RankError> first_error_of(Communicator& comm, const std::set<int>& ranks) {
  const int rank = comm.world().rank;
  return first_error(comm, ranks.contains(rank) ? error_of(rank) : std::nullopt, kTestLabel);
}

// (nodes, ranks per node); 70 ranks exceed the number of values in one sum.
class FirstError : public testing::TestWithParam<std::pair<int, int>> {};

TEST_P(FirstError, IsThatOfTheLowestRankOnAllRanks) {
  const auto [num_nodes, local] = GetParam();
  if (const std::string reason = lacks_open_files(num_nodes, local); !reason.empty()) GTEST_SKIP() << reason;
  const auto errors = run_communicators(num_nodes, local, {}, [&](Communicator& comm) {
    EXPECT_FALSE(first_error_of(comm, {}));
    const int last = comm.world().world_size - 1;
    for (const std::set<int>& failing : {std::set{2}, std::set{2, last}}) {
      const std::optional<RankError> told = first_error_of(comm, failing);
      ASSERT_TRUE(told);
      EXPECT_EQ(told->rank, 2);
      EXPECT_EQ(told->code, ExitCode::kIoError);
      EXPECT_EQ(told->message, "rank 2: disk of 2 is full");
    }
    const std::optional<RankError> of_last = first_error_of(comm, {last});
    ASSERT_TRUE(of_last);
    EXPECT_EQ(of_last->rank, last);
  });
  EXPECT_THAT(errors, Each(""));
}

INSTANTIATE_TEST_SUITE_P(Worlds, FirstError,
                         testing::Values(std::pair(1, 3), std::pair(2, 2), std::pair(1, 70)),
                         [](const auto& test) {
                           return fmt::format("{}x{}", test.param.first, test.param.second);
                         });

TEST(FirstErrorOfOneRank, NamesNoRank) {
  const auto errors = run_communicators(1, 1, {}, [&](Communicator& comm) {
    EXPECT_FALSE(first_error_of(comm, {}));
    const std::optional<RankError> told = first_error_of(comm, {0});
    ASSERT_TRUE(told);
    EXPECT_EQ(told->message, "disk of 0 is full");
  });
  EXPECT_THAT(errors, Each(""));
}

}  // namespace
}  // namespace tessera
