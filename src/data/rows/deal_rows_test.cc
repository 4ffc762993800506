// A separate program, because it counts allocations.
#include "data/rows/deal_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "base/error.h"
#include "resource_counter.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using Rows = std::vector<int64_t>;
using Lists = std::vector<Rows>;

RowLists row_lists(const Lists& lists) {
  RowLists out;
  for (const Rows& list : lists) {
    for (const int64_t row : list) out.push_back(row);
    out.end_list();
  }
  return out;
}

Lists vectors_of(const RowLists& lists) {
  Lists out;
  for (int64_t i = 0; i < lists.size(); ++i) out.emplace_back(lists[i].begin(), lists[i].end());
  return out;
}

int64_t sum_of(std::span<const int64_t> rows, const std::vector<int64_t>& costs) {
  int64_t sum = 0;
  for (const int64_t row : rows) sum += costs[static_cast<size_t>(row)];
  return sum;
}

std::vector<int64_t> costs_of(const RowLists& lists, const std::vector<int64_t>& costs) {
  std::vector<int64_t> sums;
  for (int64_t i = 0; i < lists.size(); ++i) sums.push_back(sum_of(lists[i], costs));
  return sums;
}

std::vector<int64_t> costs_of_ranks(const std::vector<int64_t>& passes, int64_t world_size) {
  std::vector<int64_t> sums(static_cast<size_t>(world_size));
  for (size_t i = 0; i < passes.size(); ++i) sums[i % sums.size()] += passes[i];
  return sums;
}

int64_t spread(const std::vector<int64_t>& values) {
  const auto [low, high] = std::minmax_element(values.begin(), values.end());
  return *high - *low;
}

RowLists deal(Dealing dealing, int64_t world_size, int64_t merged, const RowLists& micro_batches,
              const std::vector<int64_t>& costs) {
  RowLists passes;
  RowDealer(dealing, world_size, merged)
      .deal(
          micro_batches, [&](int64_t row) { return costs[static_cast<size_t>(row)]; }, &passes);
  return passes;
}

// A step of `num_micro_batches` lists of rows, each row once, with lengths distributed like those of
// documents: many short, few long, some equal.
struct Step {
  RowLists micro_batches;
  std::vector<int64_t> costs;
};

Step random_step(int64_t num_micro_batches, int64_t rows_per_micro_batch, std::mt19937& random) {
  Step step;
  const int64_t num_rows = num_micro_batches * rows_per_micro_batch;
  std::lognormal_distribution<double> length(4, 1.2);
  Rows rows(static_cast<size_t>(num_rows));
  std::iota(rows.begin(), rows.end(), 0);
  std::shuffle(rows.begin(), rows.end(), random);
  for (size_t i = 0; i < rows.size(); ++i) {
    step.costs.push_back(std::clamp<int64_t>(static_cast<int64_t>(length(random)), 1, 1024));
    step.micro_batches.push_back(rows[i]);
    if ((i + 1) % static_cast<size_t>(rows_per_micro_batch) == 0) step.micro_batches.end_list();
  }
  return step;
}

TEST(RowDealer, InOrderJoinsTheMicroBatchesOfEachRank) {
  const RowLists given = row_lists({{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10}});
  const std::vector<int64_t> costs(11, 1);
  EXPECT_EQ(vectors_of(deal(Dealing::kInOrder, 2, 1, given, costs)), vectors_of(given));
  EXPECT_THAT(
      vectors_of(deal(Dealing::kInOrder, 2, 2, given, costs)),
      ElementsAre(ElementsAre(0, 1, 4, 5), ElementsAre(2, 3, 6, 7), ElementsAre(8, 9), ElementsAre(10)));
  RowLists merged = given;
  merged.merge(4);
  EXPECT_EQ(vectors_of(deal(Dealing::kInOrder, 1, 4, given, costs)), vectors_of(merged));
}

TEST(RowDealer, CostliestRowsGoFirstToTheRankWithTheLeast) {
  // Piles: 9, 2 + 1 + 5, 5 + 2, 3 + 4. The second rank has less after the first pass.
  const RowLists given = row_lists({{0, 1}, {2, 3}, {4, 5}, {6, 7}});
  const std::vector<int64_t> costs = {2, 9, 1, 5, 3, 4, 5, 2};
  const RowLists passes = deal(Dealing::kByCost, 2, 1, given, costs);
  EXPECT_THAT(vectors_of(passes),
              ElementsAre(ElementsAre(1), ElementsAre(0, 2, 3), ElementsAre(4, 5), ElementsAre(6, 7)));
  EXPECT_THAT(costs_of(passes, costs), ElementsAre(9, 8, 7, 7));
}

TEST(RowDealer, EqualRowsStayBalancedAndInOrder) {
  const RowLists given = row_lists({{5, 6}, {7, 8}, {1, 2}, {3, 4}});
  const std::vector<int64_t> costs(9, 100);
  EXPECT_THAT(vectors_of(deal(Dealing::kByCost, 2, 1, given, costs)),
              ElementsAre(ElementsAre(5, 1), ElementsAre(6, 2), ElementsAre(7, 3), ElementsAre(8, 4)));
}

TEST(RowDealer, KeepsTheMicroBatchesWhereTheirCostliestIsCheaper) {
  // Dealing the costliest first would give 3 + 2 + 2 and 3 + 2.
  const RowLists given = row_lists({{0, 1}, {2, 3, 4}});
  const std::vector<int64_t> costs = {3, 3, 2, 2, 2};
  EXPECT_THAT(vectors_of(deal(Dealing::kByCost, 2, 1, given, costs)),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3, 4)));
  // A third rank has almost nothing: rows move to it until the bound holds.
  const RowLists uneven = row_lists({{0, 1}, {2, 3, 4}, {5}});
  const std::vector<int64_t> uneven_costs = {30, 30, 20, 20, 20, 1};
  const std::vector<int64_t> dealt =
      costs_of(deal(Dealing::kByCost, 3, 1, uneven, uneven_costs), uneven_costs);
  EXPECT_LE(*std::max_element(dealt.begin(), dealt.end()), 60);
  EXPECT_LE(spread(dealt), 30);
}

TEST(RowDealer, FewerRowsThanPassesLeavesTheLastEmpty) {
  const RowLists given = row_lists({{4, 2}, {}, {}, {}, {}, {}});
  const std::vector<int64_t> costs = {0, 0, 7, 0, 3};
  EXPECT_THAT(vectors_of(deal(Dealing::kByCost, 3, 1, given, costs)),
              ElementsAre(ElementsAre(2), ElementsAre(4), ElementsAre(), ElementsAre(), ElementsAre(),
                          ElementsAre()));
  EXPECT_EQ(deal(Dealing::kByCost, 3, 1, RowLists(), costs).size(), 0);
}

TEST(RowDealer, RandomStepsAreSharedWithinTheBounds) {
  constexpr unsigned kSeed = 20260117;
  std::mt19937 random(kSeed);
  for (int round = 0; round < 300; ++round) {
    const auto pick = [&](int64_t most) {
      return 1 + static_cast<int64_t>(random() % static_cast<unsigned>(most));
    };
    const int64_t world_size = pick(9), accumulation = pick(7), rows = pick(6), merged = pick(accumulation);
    SCOPED_TRACE(fmt::format("seed {} round {}: world {} accumulation {} rows {} merged {}", kSeed, round,
                             world_size, accumulation, rows, merged));
    const Step step = random_step(world_size * accumulation, rows, random);
    const RowLists given = deal(Dealing::kInOrder, world_size, merged, step.micro_batches, step.costs);
    const RowLists dealt = deal(Dealing::kByCost, world_size, merged, step.micro_batches, step.costs);

    ASSERT_EQ(dealt.size(), world_size * ((accumulation + merged - 1) / merged));
    Rows all(dealt.all_rows().begin(), dealt.all_rows().end());
    std::sort(all.begin(), all.end());
    Rows expected(all.size());
    std::iota(expected.begin(), expected.end(), 0);
    ASSERT_EQ(all, expected);

    const int64_t longest = *std::max_element(step.costs.begin(), step.costs.end());
    const std::vector<int64_t> passes = costs_of(dealt, step.costs);
    const std::vector<int64_t> given_passes = costs_of(given, step.costs);
    EXPECT_LE(spread(passes), longest);
    EXPECT_LE(spread(costs_of_ranks(passes, world_size)), longest);
    EXPECT_LE(*std::max_element(passes.begin(), passes.end()),
              *std::max_element(given_passes.begin(), given_passes.end()));
    for (int64_t p = world_size; p < dealt.size(); ++p) {  // no later pass is costlier
      EXPECT_LE(passes[static_cast<size_t>(p)], passes[static_cast<size_t>(p - world_size)]);
    }
  }
}

TEST(RowDealer, BalancesWhatTheOrderOfTheEpochDoesNot) {
  std::mt19937 random(5);
  const Step step = random_step(4 * 8, 16, random);
  const auto share_of_waiting = [&](Dealing dealing) {
    const std::vector<int64_t> passes =
        costs_of(deal(dealing, 4, 1, step.micro_batches, step.costs), step.costs);
    int64_t waited = 0, total = 0;
    for (size_t first = 0; first < passes.size(); first += 4) {
      const int64_t slowest = *std::max_element(&passes[first], &passes[first] + 4);
      for (size_t i = first; i < first + 4; ++i) waited += slowest - passes[i];
      total += 4 * slowest;
    }
    return static_cast<double>(waited) / static_cast<double>(total);
  };
  EXPECT_GT(share_of_waiting(Dealing::kInOrder), 0.2);
  EXPECT_LT(share_of_waiting(Dealing::kByCost), 0.02);
}

TEST(RowDealer, TakesNoMemoryAfterTheLargestStep) {
  if (!counts_resources()) GTEST_SKIP() << "the sanitizer counts allocations itself";
  std::mt19937 random(3);
  const Step first = random_step(4 * 4, 8, random);
  const Step second = random_step(4 * 4, 8, random);
  RowDealer dealer(Dealing::kByCost, 4, 1);
  RowLists passes, mine;
  const auto deal_step = [&](const Step& step) {
    dealer.deal(
        step.micro_batches, [&step](int64_t row) { return step.costs[static_cast<size_t>(row)]; }, &passes);
    passes.select(1, 4, &mine);
  };
  deal_step(first);
  const int64_t before = resource_counts().allocations;
  deal_step(first);
  EXPECT_EQ(resource_counts().allocations, before);
  deal_step(second);
  EXPECT_LE(resource_counts().allocations, before + 2) << "only lists of more rows than ever before";
  EXPECT_EQ(mine.size(), 4);
}

TEST(RowLists, SelectTakesEveryStrideThList) {
  RowLists lists = row_lists({{1}, {2, 3}, {4}, {}, {5, 6}});
  RowLists selected;
  lists.select(1, 3, &selected);
  EXPECT_THAT(vectors_of(selected), ElementsAre(ElementsAre(2, 3), ElementsAre(5, 6)));
}

}  // namespace
}  // namespace tessera
