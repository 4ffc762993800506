#include "data/rows/batch_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "expect_error.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Rows = std::vector<int64_t>;

BatchPlanOptions options_for(int64_t num_rows, int64_t micro_batch, int64_t accumulation,
                             int64_t world_size = 1, bool shuffle = false) {
  BatchPlanOptions options;
  options.num_rows = num_rows;
  options.micro_batch_size = micro_batch;
  options.gradient_accumulation_steps = accumulation;
  options.world_size = world_size;
  options.shuffle = shuffle;
  return options;
}

Rows sorted(Rows rows) {
  std::sort(rows.begin(), rows.end());
  return rows;
}

Rows joined(const std::vector<Rows>& micro_batches) {
  Rows all;
  for (const Rows& rows : micro_batches) all.insert(all.end(), rows.begin(), rows.end());
  return all;
}

Rows rows_of_epoch(const BatchPlan& plan, int64_t epoch) {
  Rows all;
  for (int64_t step = epoch * plan.steps_per_epoch(); step < (epoch + 1) * plan.steps_per_epoch(); ++step) {
    const Rows rows = joined(plan.rows_of_step(step));
    all.insert(all.end(), rows.begin(), rows.end());
  }
  return all;
}

RowLists lists_of(const std::vector<Rows>& lists) {
  RowLists out;
  for (const Rows& list : lists) {
    for (const int64_t row : list) out.push_back(row);
    out.end_list();
  }
  return out;
}

std::vector<Rows> merged(const std::vector<Rows>& lists, int64_t count) {
  RowLists joined = lists_of(lists);
  joined.merge(count);
  std::vector<Rows> out;
  for (int64_t i = 0; i < joined.size(); ++i) out.emplace_back(joined[i].begin(), joined[i].end());
  return out;
}

TEST(RowLists, MergeKeepsTheOrderOfRowsAndLeavesAShorterRest) {
  EXPECT_THAT(merged({{3, 1}, {4}, {1, 5}, {9}, {2}}, 2),
              ElementsAre(ElementsAre(3, 1, 4), ElementsAre(1, 5, 9), ElementsAre(2)));
  EXPECT_THAT(merged({{3, 1}, {4}}, 1), ElementsAre(ElementsAre(3, 1), ElementsAre(4)));
  EXPECT_THAT(merged({{3, 1}, {4}}, 8), ElementsAre(ElementsAre(3, 1, 4)));
  EXPECT_THAT(merged({}, 2), testing::IsEmpty());
  RowLists lists = lists_of({{3, 1}, {4}});
  EXPECT_THAT(lists.all_rows(), ElementsAre(3, 1, 4));
  lists.clear();
  EXPECT_EQ(lists.size(), 0);
}

TEST(TorchRandperm, GivesTorchsValues) {
  // torch.randperm(10, generator=torch.Generator().manual_seed(seed)).tolist()
  EXPECT_THAT(torch_randperm(10, 0), ElementsAre(4, 1, 7, 5, 3, 9, 0, 8, 6, 2));
  EXPECT_THAT(torch_randperm(10, 42), ElementsAre(2, 6, 1, 8, 4, 5, 0, 9, 3, 7));
}

TEST(TorchRandperm, MatchesAnIndependentMersenneTwisterBeyondOneRefill) {
  // The generator refills 624 numbers at a time. The values come from a second implementation.
  const Rows rows = torch_randperm(2000, 3);
  EXPECT_THAT(Rows(rows.begin(), rows.begin() + 5), ElementsAre(986, 1005, 255, 1128, 224));
  EXPECT_THAT(Rows(rows.end() - 5, rows.end()), ElementsAre(1620, 557, 485, 127, 628));
  const auto of_64bit = [](int64_t n, uint32_t seed) {
    std::mt19937 generator(seed);
    return internal::torch_randperm_64bit(n, &generator);
  };
  EXPECT_THAT(of_64bit(10, 0), ElementsAre(8, 2, 6, 3, 5, 1, 0, 9, 7, 4));
  EXPECT_THAT(of_64bit(10, 42), ElementsAre(6, 0, 5, 8, 7, 2, 3, 1, 9, 4));
}

TEST(TorchRandperm, IsAPermutationOfEverySize) {
  for (const int64_t n : {0, 1, 2, 3, 17, 623, 624, 625, 5000}) {
    Rows expected(static_cast<size_t>(n));
    std::iota(expected.begin(), expected.end(), 0);
    std::mt19937 generator(7);
    EXPECT_EQ(sorted(internal::torch_randperm_32bit(n, &generator)), expected) << "n=" << n;
    EXPECT_EQ(sorted(internal::torch_randperm_64bit(n, &generator)), expected) << "n=" << n;
  }
}

TEST(TorchRandperm, UsesTheLow32BitsOfTheSeed) {
  EXPECT_EQ(torch_randperm(100, (uint64_t{1} << 32) + 5), torch_randperm(100, 5));
  EXPECT_NE(torch_randperm(100, 6), torch_randperm(100, 5));
}

TEST(BatchPlan, CountsBatchesAndStepsAsTrainerDoes) {
  struct Case {
    int64_t rows, micro_batch, accumulation, world_size;
    bool drop_last;
    int64_t batches, steps;
  };
  const Case kCases[] = {
      {100, 10, 1, 1, false, 10, 10}, {101, 10, 1, 1, false, 11, 11}, {101, 10, 1, 1, true, 10, 10},
      {101, 10, 4, 1, false, 11, 3},  {101, 10, 4, 1, true, 10, 3},   {80, 10, 4, 1, false, 8, 2},
      {3, 8, 1, 1, false, 1, 1},      {3, 8, 4, 1, false, 1, 1},      {100, 10, 1, 3, false, 4, 4},
      {100, 10, 1, 3, true, 3, 3},    {100, 10, 3, 3, false, 4, 2},   {7, 1, 2, 4, false, 2, 1},
      {5, 2, 1, 8, false, 1, 1},      {1, 1, 1, 1, true, 1, 1},
  };
  for (const Case& c : kCases) {
    BatchPlanOptions options = options_for(c.rows, c.micro_batch, c.accumulation, c.world_size);
    options.drop_last = c.drop_last;
    const BatchPlan plan(options);
    EXPECT_EQ(plan.batches_per_epoch(), c.batches) << c.rows << " rows, world size " << c.world_size;
    EXPECT_EQ(plan.steps_per_epoch(), c.steps) << c.rows << " rows, accumulation " << c.accumulation;
  }
}

TEST(BatchPlan, RoundsStepsForEpochsUp) {
  const BatchPlan plan(options_for(101, 10, 4));  // 3 steps per epoch
  EXPECT_EQ(plan.steps_for_epochs(3.0), 9);
  EXPECT_EQ(plan.steps_for_epochs(0.5), 2);
  EXPECT_EQ(plan.steps_for_epochs(1.0 / 3), 1);
  EXPECT_EQ(plan.steps_for_epochs(0), 0);
  EXPECT_EQ(error_of([&] { plan.steps_for_epochs(-1); }).code(), ExitCode::kBadConfig);
  EXPECT_EQ(error_of([&] { plan.steps_for_epochs(std::nan("")); }).code(), ExitCode::kBadConfig);
}

TEST(BatchPlan, ReportsTheEpochByBatchesTaken) {
  const BatchPlan plan(options_for(101, 10, 4));  // 11 batches: steps of 4, 4 and 3
  EXPECT_DOUBLE_EQ(plan.epoch_after(0), 0);
  EXPECT_DOUBLE_EQ(plan.epoch_after(1), 4.0 / 11);
  EXPECT_DOUBLE_EQ(plan.epoch_after(2), 8.0 / 11);
  EXPECT_DOUBLE_EQ(plan.epoch_after(3), 1);
  EXPECT_DOUBLE_EQ(plan.epoch_after(4), 1 + 4.0 / 11);
}

TEST(BatchPlan, WithoutShuffleStepKTakesTheKthGlobalBatchInOrder) {
  for (const int64_t world_size : {1, 2, 3}) {
    const int64_t global_batch = 2 * 3 * world_size;
    const BatchPlan plan(options_for(4 * global_batch, 2, 3, world_size));
    for (int64_t step = 0; step < 4; ++step) {
      Rows expected(static_cast<size_t>(global_batch));
      std::iota(expected.begin(), expected.end(), step * global_batch);
      const std::vector<Rows> micro_batches = plan.rows_of_step(step);
      EXPECT_EQ(joined(micro_batches), expected) << "step " << step << ", world size " << world_size;
      ASSERT_EQ(static_cast<int64_t>(micro_batches.size()), 3 * world_size);
      for (const Rows& rows : micro_batches) EXPECT_EQ(rows.size(), 2u);
    }
    EXPECT_EQ(plan.rows_of_step(4), plan.rows_of_step(0)) << "the next epoch starts over";
  }
}

TEST(BatchPlan, LastStepOfAnEpochTakesTheRemainder) {
  const BatchPlan plan(options_for(11, 2, 2));  // batches of 2, 2 | 2, 2 | 2, 1
  EXPECT_THAT(plan.rows_of_step(1), ElementsAre(ElementsAre(4, 5), ElementsAre(6, 7)));
  EXPECT_THAT(plan.rows_of_step(2), ElementsAre(ElementsAre(8, 9), ElementsAre(10)));
  EXPECT_THAT(plan.rows_of_step(3), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3)));
  const BatchPlan odd(options_for(5, 2, 2));  // 2, 2 | 1
  EXPECT_THAT(odd.rows_of_step(1), ElementsAre(ElementsAre(4)));
}

TEST(BatchPlan, DropLastLeavesThePartialBatchOut) {
  BatchPlanOptions options = options_for(11, 2, 2);
  options.drop_last = true;
  const BatchPlan plan(options);
  EXPECT_THAT(plan.rows_of_step(2), ElementsAre(ElementsAre(8, 9)));
}

TEST(BatchPlan, SeveralRanksGetEqualCountsCompletedFromTheStart) {
  // accelerate's BatchSamplerShard with even_batches, 7 rows, batches of 2, 3 processes:
  // process 0: [0, 1], [6, 0]; process 1: [2, 3], [1, 2]; process 2: [4, 5], [3, 4].
  const BatchPlan plan(options_for(7, 2, 1, 3));
  EXPECT_THAT(plan.rows_of_step(0), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4, 5)));
  EXPECT_THAT(plan.rows_of_step(1), ElementsAre(ElementsAre(6, 0), ElementsAre(1, 2), ElementsAre(3, 4)));
  // Fewer rows than one round: they repeat as often as needed.
  const BatchPlan tiny(options_for(3, 2, 1, 4));
  EXPECT_THAT(tiny.rows_of_step(0),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 0), ElementsAre(1, 2), ElementsAre(0, 1)));
}

TEST(BatchPlan, ShufflesEveryEpochWithSeedPlusEpoch) {
  BatchPlanOptions options = options_for(10, 3, 2, 1, true);
  options.seed = 41;
  const BatchPlan plan(options);
  EXPECT_EQ(rows_of_epoch(plan, 0), torch_randperm(10, 41));
  EXPECT_THAT(rows_of_epoch(plan, 1), ElementsAre(2, 6, 1, 8, 4, 5, 0, 9, 3, 7));
  EXPECT_EQ(rows_of_epoch(plan, 0), torch_randperm(10, 41)) << "going back to an earlier epoch";
}

TEST(BatchPlan, GlobalBatchDoesNotDependOnHowItIsSplit) {
  const BatchPlan one(options_for(100, 2, 6, 1, true));
  for (const auto& [micro_batch, accumulation, world_size] :
       {std::array<int64_t, 3>{2, 3, 2}, {2, 1, 6}, {4, 1, 3}, {12, 1, 1}, {1, 3, 4}}) {
    const BatchPlan other(options_for(100, micro_batch, accumulation, world_size, true));
    for (int64_t step = 0; step < 8; ++step) {
      EXPECT_EQ(joined(other.rows_of_step(step)), joined(one.rows_of_step(step)))
          << "step " << step << ", world size " << world_size;
    }
  }
}

BatchPlanOptions global_options(int64_t num_rows, int64_t global_batch_size, int64_t micro_batch,
                                int64_t world_size) {
  BatchPlanOptions options = options_for(num_rows, micro_batch, 1, world_size, true);
  options.global_batch_size = global_batch_size;
  return options;
}

TEST(BatchPlan, GivenGlobalBatchIsThatOfOneRankWhateverTheRanks) {
  for (const int64_t global_batch : {1, 4, 7, 12, 23}) {
    for (const bool drop_last : {false, true}) {
      BatchPlanOptions whole = options_for(23, global_batch, 1, 1, true);
      whole.drop_last = drop_last;
      const BatchPlan expected(whole);
      for (const int64_t world_size : {1, 2, 3, 4, 5, 16}) {
        for (const int64_t micro_batch : {1, 2, 5, 8}) {
          BatchPlanOptions options = global_options(23, global_batch, micro_batch, world_size);
          options.drop_last = drop_last;
          const BatchPlan plan(options);
          ASSERT_EQ(plan.steps_per_epoch(), expected.steps_per_epoch());
          EXPECT_EQ(plan.steps_for_epochs(2.5), expected.steps_for_epochs(2.5));
          const int64_t accumulation = accumulation_of_global_batch(global_batch, micro_batch, world_size);
          for (int64_t step = 0; step < 2 * plan.steps_per_epoch(); ++step) {
            const std::vector<Rows> micro_batches = plan.rows_of_step(step);
            EXPECT_EQ(joined(micro_batches), expected.rows_of_step(step).front())
                << "step " << step << " of " << global_batch << " rows, world size " << world_size;
            EXPECT_EQ(plan.epoch_after(step), expected.epoch_after(step));
            EXPECT_EQ(std::ssize(micro_batches) % world_size, 0);
            EXPECT_LE(std::ssize(micro_batches), accumulation * world_size);
            for (const Rows& rows : micro_batches) {
              EXPECT_LE(std::ssize(rows), micro_batch_rows(options));
              EXPECT_GE(rows.size() + 1, micro_batches.front().size()) << "cut evenly";
            }
          }
        }
      }
    }
  }
}

// Each is on one rank, and the others have none.
TEST(BatchPlan, WholeMicroBatchesAreThoseOfOneRankWhateverTheRanks) {
  for (const int64_t global_batch : {1, 4, 7, 12}) {
    for (const int64_t micro_batch : {1, 2, 5}) {
      const std::vector<Rows> expected =
          BatchPlan(global_options(23, global_batch, micro_batch, 1)).rows_of_step(1);
      for (const int64_t world_size : {1, 2, 3, 5}) {
        BatchPlanOptions options = global_options(23, global_batch, micro_batch, world_size);
        options.whole_micro_batches = true;
        std::vector<Rows> found = BatchPlan(options).rows_of_step(1);
        EXPECT_EQ(std::ssize(found) % world_size, 0);
        while (!found.empty() && found.back().empty()) found.pop_back();
        EXPECT_EQ(found, expected) << global_batch << " rows by " << micro_batch << " on " << world_size;
      }
    }
  }
}

TEST(BatchPlan, RowsCutAnewStayThoseOfTheStep) {
  for (const auto& [micro_batch, accumulation, world_size] :
       {std::array<int64_t, 3>{2, 1, 4}, {1, 3, 2}, {3, 2, 1}}) {
    const BatchPlanOptions options = options_for(23, micro_batch, accumulation, world_size, true);
    const BatchPlan whole(options);
    for (const StepCut cut : {StepCut{2, 1}, StepCut{1, 3}, StepCut{5, 2}, StepCut{1, 16}}) {
      BatchPlanOptions anew = options;
      anew.cut = cut;
      const BatchPlan plan(anew);
      ASSERT_EQ(plan.steps_per_epoch(), whole.steps_per_epoch());
      for (int64_t step = 0; step < 2 * plan.steps_per_epoch(); ++step) {
        const std::vector<Rows> micro_batches = plan.rows_of_step(step);
        EXPECT_EQ(joined(micro_batches), joined(whole.rows_of_step(step)))
            << "step " << step << " of " << world_size << " ranks, cut for " << cut.world_size;
        EXPECT_EQ(std::ssize(micro_batches) % cut.world_size, 0);
        for (const Rows& rows : micro_batches) {
          EXPECT_LE(std::ssize(rows), std::min(cut.micro_batch_size, micro_batch_rows(anew)));
          EXPECT_GE(rows.size() + 1, micro_batches.front().size()) << "cut evenly";
        }
      }
    }
  }
}

TEST(BatchPlan, AccumulationFollowsFromTheGlobalBatch) {
  EXPECT_EQ(accumulation_of_global_batch(12, 2, 3), 2);
  EXPECT_EQ(accumulation_of_global_batch(13, 2, 3), 3);
  EXPECT_EQ(accumulation_of_global_batch(4, 8, 3), 1);
  EXPECT_EQ(accumulation_of_global_batch(1, int64_t{1} << 62, int64_t{1} << 62), 1);
  EXPECT_EQ(micro_batch_rows(global_options(100, 4, 8, 3)), 2);
  EXPECT_EQ(micro_batch_rows(global_options(100, 10, 8, 1)), 5);
  EXPECT_EQ(micro_batch_rows(global_options(100, 64, 8, 2)), 8);
  EXPECT_EQ(micro_batch_rows(options_for(100, 8, 3, 2)), 8);
}

TEST(BatchPlan, GivenGlobalBatchIsNamedWhereItDoesNotFit) {
  EXPECT_THAT(few_rows_warning(global_options(11, 12, 4, 2)),
              HasSubstr("has 11 rows, one step takes 12 (global_batch_size): every epoch is a single step of "
                        "fewer rows; give more data, or lower global_batch_size"));
  EXPECT_EQ(few_rows_warning(global_options(12, 12, 8, 4)), "");  // the product would be 32 rows
  EXPECT_EQ(error_of([] { global_batch_rows(global_options(12, 0, 8, 4)); }).code(), ExitCode::kBadConfig);
  BatchPlanOptions options = global_options(11, 12, 4, 2);
  options.drop_last = true;
  EXPECT_THAT(error_of([&] { BatchPlan{options}; }).what(), HasSubstr("takes 12 (global_batch_size)"));
}

TEST(BatchPlan, ADatasetSmallerThanOneGlobalBatchIsAStepPerEpoch) {
  EXPECT_EQ(few_rows_warning(options_for(1, 2, 3, 2), "set --packing, "),
            "the dataset has 1 row, one step takes 12 (batch size 2 x accumulation 3 x world size 2): every "
            "epoch is a single step of fewer rows; set --packing, give more data, or lower the batch size or "
            "gradient_accumulation_steps for more steps");
  EXPECT_EQ(few_rows_warning(options_for(12, 2, 3, 2)), "");
  BatchPlanOptions options = options_for(3, 2, 4);
  options.shuffle = false;
  const BatchPlan one_rank(options);
  EXPECT_EQ(one_rank.steps_per_epoch(), 1);
  EXPECT_THAT(one_rank.rows_of_step(1), ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
  options.world_size = 2;  // accelerate's even_batches: rows come again until the ranks have as many
  EXPECT_THAT(BatchPlan(options).rows_of_step(0), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 0)));
  options.micro_batch_size = 4;
  EXPECT_THAT(BatchPlan(options).rows_of_step(0),
              ElementsAre(ElementsAre(0, 1, 2, 0), ElementsAre(1, 2, 0, 1)));
}

TEST(BatchPlan, RefusesSettingsWithoutAnyBatch) {
  BatchPlanOptions options = options_for(3, 8, 1);
  options.drop_last = true;
  EXPECT_THAT(error_of([&] { BatchPlan{options}; }).what(), HasSubstr("dataloader_drop_last"));
  EXPECT_EQ(error_of([] { BatchPlan{options_for(0, 1, 1)}; }).code(), ExitCode::kBadData);
  EXPECT_EQ(error_of([] { BatchPlan{options_for(3, 0, 1)}; }).code(), ExitCode::kBadConfig);
  EXPECT_EQ(error_of([] { BatchPlan{options_for(3, 1, -1)}; }).code(), ExitCode::kBadConfig);
  EXPECT_EQ(error_of([] { BatchPlan{options_for(3, int64_t{1} << 40, int64_t{1} << 40)}; }).code(),
            ExitCode::kBadConfig);
}

// Rows 0 to 9 are of the first part, 10 to 39 of the second.
BatchPlanOptions mixture_options(double weight, bool shuffle) {
  BatchPlanOptions options = {.num_rows = 0, .micro_batch_size = 1, .gradient_accumulation_steps = 1};
  options.shuffle = shuffle;
  options.mixture = {{10, weight}, {30, 1 - weight}};
  for (const int64_t share : mixture_shares(options.mixture)) options.num_rows += share;
  return options;
}

TEST(Mixture, SharesFollowTheWeightsUntilAPartIsUsedUp) {
  EXPECT_THAT(mixture_shares({{10, 0.5}, {30, 0.5}}), ElementsAre(10, 10));
  EXPECT_THAT(mixture_shares({{10, 0.7}, {30, 0.3}}), ElementsAre(10, 4));
  EXPECT_THAT(mixture_shares({{10, 1}, {30, 9}}), ElementsAre(3, 30));
  EXPECT_THAT(mixture_shares({{10, 1e-6}, {30, 1}}), ElementsAre(1, 30));
  EXPECT_THAT(mixture_shares({{10, 3}}), ElementsAre(10));
}

TEST(Mixture, EveryEpochTakesOtherRowsUntilAllWereTaken) {
  for (const bool shuffle : {false, true}) {
    const BatchPlan plan(mixture_options(0.5, shuffle));
    std::multiset<int64_t> of_second;
    std::vector<int64_t> first_epoch;
    for (int64_t epoch = 0; epoch < 6; ++epoch) {
      std::vector<int64_t> rows = rows_of_epoch(plan, epoch);
      EXPECT_EQ(std::count_if(rows.begin(), rows.end(), [](int64_t row) { return row < 10; }), 10);
      for (const int64_t row : rows) {
        if (row >= 10) of_second.insert(row);
      }
      if (epoch == 0) first_epoch = rows;
      if (epoch == 3) {
        EXPECT_EQ(rows != first_epoch, shuffle) << "a new round has a new order";
      }
    }
    for (int64_t row = 10; row < 40; ++row) EXPECT_EQ(of_second.count(row), 2u) << row;
  }
}

TEST(Mixture, WithoutShufflingThePartsTakeTurns) {
  EXPECT_THAT(rows_of_epoch(BatchPlan(mixture_options(0.25, false)), 0).size(), 40u);
  const std::vector<int64_t> rows = rows_of_epoch(BatchPlan(mixture_options(0.5, false)), 1);
  EXPECT_THAT(std::vector<int64_t>(rows.begin(), rows.begin() + 4), ElementsAre(0, 20, 1, 21));
}

}  // namespace
}  // namespace tessera
