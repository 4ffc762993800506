// Orders by length are those of get_length_grouped_indices() in Transformers 5.24.
#include "data/rows/length_order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/rows/batch_plan.h"
#include "support/drawn_lengths.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

// torch.manual_seed(11 * seed), then for every epoch before, a loader's base seed and randperm(num_rows); for
// every evaluation and for this epoch a base seed.
struct StoredOrder {
  int64_t seed, num_rows, group_rows, low, high, epoch, evaluations;
  uint64_t hash;
};
constexpr StoredOrder kStoredOrders[] = {
    {1, 22, 4, 1, 30, 0, 0, 4568283726808302035u},
    {2, 37, 6, 1, 9, 2, 3, 9212181233827761353u},
    {3, 1000, 8, 1, 500, 1, 0, 4377892387082972248u},
    {4, 5, 8, 1, 9, 1, 1, 557122131762345281u},
    {5, 1, 4, 1, 9, 3, 0, 1u},
    {6, 3000, 3, 5, 6, 0, 2, 16431568366505990468u},
};

TEST(LengthOrder, IsTheTrainersAfterTheSameDraws) {
  for (const StoredOrder& stored : kStoredOrders) {
    const std::vector<int64_t> lengths = drawn_lengths(stored.seed, stored.num_rows, stored.low, stored.high);
    const std::vector<int64_t> order =
        length_grouped_epoch(lengths, stored.group_rows, static_cast<uint64_t>(11 * stored.seed),
                             stored.epoch, stored.evaluations);
    EXPECT_EQ(hash_of(order), stored.hash) << "seed " << stored.seed;
  }
}

// Trainer(train_sampling_strategy="group_by_length", per_device_train_batch_size=2,
// gradient_accumulation_steps=3, seed=22) on the rows of the second stored order; three evaluations before.
TEST(LengthOrder, StepsReadTheRowsOfTheGroupedEpoch) {
  const std::vector<int64_t> lengths = drawn_lengths(2, 37, 1, 9);
  BatchPlanOptions options = {.num_rows = 37, .micro_batch_size = 2, .gradient_accumulation_steps = 3};
  options.seed = 22;
  options.length_groups = {[&](int64_t row) { return lengths[static_cast<size_t>(row)]; },
                           [](int64_t epoch) { return epoch + 1; }};
  const BatchPlan plan(options);
  EXPECT_THAT(plan.rows_of_step(2 * plan.steps_per_epoch()),
              ElementsAre(ElementsAre(3, 33), ElementsAre(11, 1), ElementsAre(20, 16)));
  options.world_size = 2;
  options.gradient_accumulation_steps = 3;
  EXPECT_THAT(BatchPlan(options).rows_of_step(2 * BatchPlan(options).steps_per_epoch()),
              ElementsAre(ElementsAre(3, 33), ElementsAre(11, 1), ElementsAre(20, 16), ElementsAre(15, 12),
                          ElementsAre(28, 21), ElementsAre(29, 25)));
}

TEST(LengthOrder, NoRowsHaveNone) {
  std::mt19937 generator(1);
  EXPECT_TRUE(length_grouped_order({}, 4, &generator).empty());
}

}  // namespace
}  // namespace tessera
