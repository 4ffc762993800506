#include "settings/derived.h"

#include <gmock/gmock.h>

#include "support/settings/arguments_test_support.h"

namespace tessera {
namespace {

using testing::HasSubstr;

using ContextArguments = ArgumentsTest;

TEST_F(ContextArguments, MakeTeamsThatHaveTheRowsOfARank) {
  give("context_parallel_size", "2");
  give("per_device_train_batch_size", "3");
  resolve(6);
  EXPECT_EQ(num_row_ranks(spec_.sharding, 6), 3);
  EXPECT_EQ(global_batch_rows(spec_.batch_options(6)), 9);
}

TEST_F(ContextArguments, DeriveTheAccumulationOfAGlobalBatchFromTeams) {
  give("context_parallel_size", "4");
  give("per_device_train_batch_size", "2");
  give("global_batch_size", "32");
  resolve(8);
  EXPECT_EQ(spec_.batch.accumulation_steps, 8);
}

TEST_F(ContextArguments, NeedRanksThatFormTeams) {
  give("context_parallel_size", "4");
  EXPECT_THAT(contradiction(6), HasSubstr("expected a divisor of the number of ranks, found 6 ranks"));
  EXPECT_THAT(contradiction(1), HasSubstr("found 1 rank"));
}

TEST_F(ContextArguments, LeaveOutWhatTeamsCannotDo) {
  give("context_parallel_size", "2");
  give("sync_every", "50");
  EXPECT_THAT(contradiction(4), HasSubstr("cannot be combined with sync_every 50"));
}

}  // namespace
}  // namespace tessera
