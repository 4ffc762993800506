#include "data/rows/token_masks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <random>

#include "data/masked_rows.h"
#include "data/rows/batch_plan.h"
#include "support/dataset_test_util.h"
#include "tensor/packed_batch.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kMask = 3;
constexpr int32_t kNumIds = 1000;

MaskingRule rule_with_mask() {
  MaskingRule rule;
  rule.mask_id = kMask;
  rule.special_ids = {0, 1, 2, kMask};
  rule.num_random_ids = kNumIds;
  return rule;
}

struct MaskedIds {
  std::vector<int32_t> ids, targets;
};

MaskedIds masked(const MaskingRule& rule, int64_t step, int64_t row, const std::vector<int32_t>& ids) {
  MaskedIds result = {ids, {}};
  const int64_t count = mask_tokens(rule, step, row, result.ids, &result.targets);
  EXPECT_EQ(count, std::ssize(ids) - std::ranges::count(result.targets, kIgnoredLabel));
  EXPECT_EQ(count, count_masked_tokens(rule, step, row, ids));
  return result;
}

// Counts of a binomial distribution are within five standard deviations.
void expect_share(int64_t count, int64_t of, double share, const char* what) {
  const double n = static_cast<double>(of);
  EXPECT_NEAR(static_cast<double>(count), n * share, 5 * std::sqrt(n * share * (1 - share))) << what;
}

// The rule of DataCollatorForLanguageModeling, in shares.
TEST(TokenMasks, FollowTheShares) {
  const std::vector<int32_t> ids(1000, 500);
  int64_t num_targets = 0, num_masks = 0, num_kept = 0;
  std::vector<int64_t> random_ids;
  for (int64_t row = 0; row < 500; ++row) {
    const MaskedIds found = masked(rule_with_mask(), 7, row, ids);
    for (size_t t = 0; t < ids.size(); ++t) {
      if (found.targets[t] == kIgnoredLabel) {
        ASSERT_EQ(found.ids[t], ids[t]);
        continue;
      }
      ASSERT_EQ(found.targets[t], ids[t]);
      ++num_targets;
      num_masks += found.ids[t] == kMask ? 1 : 0;
      num_kept += found.ids[t] == ids[t] ? 1 : 0;
      if (found.ids[t] != kMask && found.ids[t] != ids[t]) random_ids.push_back(found.ids[t]);
    }
  }
  expect_share(num_targets, 500'000, 0.15, "targets");
  expect_share(num_masks, num_targets, 0.8 + 0.1 / kNumIds, "mask tokens");
  expect_share(num_kept, num_targets, 0.1 + 0.1 / kNumIds, "kept tokens");
  double sum = 0;
  for (const int64_t id : random_ids) sum += static_cast<double>(id);
  const double mean = sum / static_cast<double>(random_ids.size());
  const double deviation = kNumIds / std::sqrt(12.0 * static_cast<double>(random_ids.size()));
  EXPECT_NEAR(mean, (kNumIds - 1) / 2.0, 5 * deviation) << "random tokens are uniform";
}

TEST(TokenMasks, SpecialTokensAreNoTargets) {
  MaskingRule rule = rule_with_mask();
  rule.mlm_probability = 1;
  const MaskedIds found = masked(rule, 0, 0, {1, 500, kMask, 501, 2, 0});
  EXPECT_THAT(found.targets, ElementsAre(-100, 500, -100, 501, -100, -100));
  rule.mask_replace_prob = 1;
  rule.random_replace_prob = 0;
  EXPECT_THAT(masked(rule, 0, 0, {1, 500, 501, 2}).ids, ElementsAre(1, kMask, kMask, 2));
  rule.mask_replace_prob = 0;
  EXPECT_THAT(masked(rule, 0, 0, {1, 500, 501, 2}).ids, ElementsAre(1, 500, 501, 2))
      << "predicted as they are";
  rule.mlm_probability = 0;
  EXPECT_EQ(count_masked_tokens(rule, 0, 0, std::vector<int32_t>(100, 500)), 0);
}

TEST(TokenMasks, FollowFromSeedStepAndRow) {
  const std::vector<int32_t> ids(200, 500);
  MaskingRule rule = rule_with_mask();
  const MaskedIds first = masked(rule, 3, 8, ids);
  EXPECT_EQ(masked(rule, 3, 8, ids).targets, first.targets);
  EXPECT_EQ(masked(rule, 3, 8, ids).ids, first.ids);
  EXPECT_NE(masked(rule, 4, 8, ids).targets, first.targets);
  EXPECT_NE(masked(rule, kNoStep, 8, ids).targets, first.targets);
  EXPECT_NE(masked(rule, 3, 9, ids).targets, first.targets);
  rule.seed = 43;
  EXPECT_NE(masked(rule, 3, 8, ids).targets, first.targets);
}

// A later version must draw the same, so that runs resume and evaluations compare.
TEST(TokenMasks, StayTheSameInLaterVersions) {
  std::vector<int32_t> ids(40);
  for (size_t t = 0; t < ids.size(); ++t) ids[t] = 100 + static_cast<int32_t>(t);
  const MaskedIds found = masked(rule_with_mask(), 0, 0, ids);
  std::vector<size_t> places;
  for (size_t t = 0; t < ids.size(); ++t)
    if (found.targets[t] != kIgnoredLabel) places.push_back(t);
  EXPECT_THAT(places, ElementsAre(1, 3, 14, 25, 26, 28, 30, 37, 38, 39)) << "as Philox in Python has them";
}

class MaskedBatchTest : public DatasetTest {
 protected:
  MaskedBatchTest() : encoder_(make_byte_tokenizer(folder_ / "encoder", {.has_mask = true})) {}

  Dataset open_masked(const std::string& name, Packing packing = Packing::kNone) {
    DatasetOptions options = options_for({name});
    options.add_special_tokens = true;
    options.text_per_line = true;
    options.packing = packing;
    use_masked_rows({}, 64, &options);
    name_masking_tokens(&encoder_, kTestVocabSize + 1, &*options.masking);
    return Dataset::open(options, &encoder_, kTestVocabSize + 1, pool_);
  }
  std::string lines(int64_t count) const {
    std::mt19937 random(5);
    std::string text;
    for (int64_t i = 0; i < count; ++i)
      text += std::string(1 + random() % 40, static_cast<char>('a' + random() % 26)) + "\n";
    return text;
  }

  Tokenizer encoder_;
};

TEST_F(MaskedBatchTest, LabelsAreTargetsInTheirPlaces) {
  folder_.write(
      "d.jsonl",
      "{\"input_ids\": [9, 10, 11], \"labels\": [-100, 20, -100]}\n{\"input_ids\": [7], \"labels\": [8]}\n");
  const Dataset dataset = open_masked("d.jsonl");
  PackedBatch batch;
  make_packed_batch(dataset, std::array<int64_t, 2>{1, 0}, 0, &batch);
  EXPECT_THAT(batch.input_ids, ElementsAre(7, 9, 10, 11));
  EXPECT_THAT(batch.targets, ElementsAre(8, -100, 20, -100));
  EXPECT_THAT(batch.positions, ElementsAre(0, 0, 1, 2));
  EXPECT_THAT(batch.cu_seqlens, ElementsAre(0, 1, 4));
  EXPECT_EQ(batch.num_targets, 2);
  EXPECT_EQ(batch.num_sources, 0);
  EXPECT_EQ(batch.num_tokens(), dataset.num_tokens());
}

TEST_F(MaskedBatchTest, TextsAreMaskedAnewInEveryStep) {
  folder_.write("d.txt", lines(20));
  const Dataset dataset = open_masked("d.txt");
  std::vector<int64_t> rows(20);
  std::iota(rows.begin(), rows.end(), 0);
  const auto batch_of = [&](int64_t step) {
    PackedBatch batch;
    make_packed_batch(dataset, rows, step, &batch);
    return batch;
  };
  const PackedBatch first = batch_of(0);
  EXPECT_EQ(batch_of(0).input_ids, first.input_ids);
  EXPECT_EQ(batch_of(0).targets, first.targets);
  EXPECT_NE(batch_of(1).targets, first.targets);
  for (size_t t = 0; t < first.targets.size(); ++t) {
    EXPECT_NE(first.targets[t], kTestBos);
    EXPECT_NE(first.targets[t], kTestEos);
  }
}

// Labelled rows and others, texts and packed texts, in random batches of random steps.
TEST_F(MaskedBatchTest, AStepsTargetsAreThoseOfItsBatches) {
  std::string ids = "{\"input_ids\": [9, 10, 11], \"labels\": [-100, 20, -100]}\n";
  for (int i = 0; i < 19; ++i)
    ids += R"({"input_ids": [40, 41, 42, 43, 44, 45, 46, 47, 48, 49]})"
           "\n";
  folder_.write("d.jsonl", ids);
  folder_.write("d.txt", lines(60));
  std::mt19937 random(3);
  for (const auto& [name, packing] :
       {std::pair{"d.jsonl", Packing::kNone}, std::pair{"d.txt", Packing::kNone},
        std::pair{"d.txt", Packing::kJoined}, std::pair{"d.txt", Packing::kIsolated}}) {
    const Dataset dataset = open_masked(name, packing);
    int64_t num_all = 0;
    for (int round = 0; round < 100; ++round) {
      const auto step = static_cast<int64_t>(random() % 1000) - 1;
      std::vector<int64_t> rows(1 + random() % 8);
      int64_t num_targets = 0, num_tokens = 0;
      for (int64_t& row : rows) {
        row = static_cast<int64_t>(random() % static_cast<uint32_t>(dataset.num_rows()));
        num_targets += count_row_targets(dataset, step, row);
        num_tokens += dataset.row_length(row);
      }
      PackedBatch batch;
      make_packed_batch(dataset, rows, step, &batch);
      const int64_t in_batch = std::ssize(batch.targets) - std::ranges::count(batch.targets, kIgnoredLabel);
      ASSERT_EQ(batch.num_targets, in_batch) << name << " step " << step;
      ASSERT_EQ(num_targets, in_batch) << name << " step " << step;
      ASSERT_EQ(batch.num_tokens(), num_tokens);
      ASSERT_EQ(batch.cu_seqlens.back(), num_tokens);
      ASSERT_EQ(std::ssize(batch.positions), num_tokens);
      num_all += num_targets;
    }
    EXPECT_GT(num_all, 0);
  }
}

}  // namespace
}  // namespace tessera
