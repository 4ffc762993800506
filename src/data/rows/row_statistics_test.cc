#include "data/rows/row_statistics.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "expect_error.h"
#include "support/dataset_test_util.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

class RowStatisticsTest : public DatasetTest {
 protected:
  RowStatistics statistics_of(const DatasetOptions& options, int64_t max_length, bool packing = false,
                              bool has_eos = true) {
    const Tokenizer tokenizer = make_byte_tokenizer(folder_ / "t", {.has_eos = has_eos});
    const RowPlan plan = plan_rows(options.sources, options);
    RowStatisticsOptions wanted;
    wanted.max_length = max_length;
    wanted.packing = packing;
    wanted.padded_batch = 2;
    return row_statistics(plan, options, &tokenizer, kTestVocabSize, wanted, &pool_,
                          [&](double share) { shares_.push_back(share); });
  }

  std::vector<double> shares_;
};

// A token for each letter, and the end of the text.
TEST_F(RowStatisticsTest, CountsRowsTokensAndTargetsOfEveryFile) {
  folder_.write("a.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"abcdefgh\"}\n");
  folder_.write("b.jsonl", "{\"text\": \"abcd\"}\n");
  const RowStatistics found = statistics_of(options_for({"a.jsonl", "b.jsonl"}), 6);
  EXPECT_THAT(found.lengths, ElementsAre(3, 5, 9));
  EXPECT_EQ(found.num_tokens(), 17);
  EXPECT_EQ(found.num_targets, 17 - 3) << "all but the first of each row";
  EXPECT_EQ(found.num_empty, 0);
  EXPECT_EQ(found.num_bad, 0);
  ASSERT_EQ(found.files.size(), 2u);
  EXPECT_THAT(found.files.begin()->first, HasSubstr("a.jsonl"));
  EXPECT_EQ(found.files.begin()->second.num_rows, 2);
  EXPECT_EQ(found.files.begin()->second.num_tokens, 12);
  EXPECT_EQ(found.files.rbegin()->second.num_tokens, 5);
  EXPECT_EQ(found.num_cut_rows, 1);
  EXPECT_EQ(found.num_cut_tokens, 3);
  EXPECT_EQ(found.quantile(0), 3);
  EXPECT_EQ(found.quantile(0.5), 5);
  EXPECT_EQ(found.quantile(1), 9);
  EXPECT_THAT(found.histogram(), ElementsAre(Pair(1, 1), Pair(2, 1), Pair(3, 1)));
  EXPECT_GT(found.size_bytes, 0);
  ASSERT_FALSE(shares_.empty());
  EXPECT_NEAR(shares_.back(), 1, 0.02);
}

TEST_F(RowStatisticsTest, ARowWithoutATargetIsDroppedUnlessRowsArePacked) {
  folder_.write("d.jsonl",
                "{\"prompt\": \"pppppppp\", \"completion\": \"c\"}\n"
                "{\"prompt\": \"p\", \"completion\": \"cc\"}\n");
  const DatasetOptions options = options_for({"d.jsonl"});
  const RowStatistics cut = statistics_of(options, 6);
  EXPECT_EQ(cut.num_masked, 1);
  EXPECT_EQ(cut.lengths.size(), 1u);
  const RowStatistics packed = statistics_of(options, 6, /*packing=*/true);
  EXPECT_EQ(packed.num_masked, 0);
  EXPECT_EQ(packed.lengths.size(), 2u);
}

// Without a token at its end an empty text has none at all.
TEST_F(RowStatisticsTest, RowsWithoutTokensAreLeftOutAndADatasetOfThemIsRefused) {
  folder_.write("d.jsonl", "{\"text\": \"\"}\n{\"text\": \"\"}\n");
  folder_.write("one.jsonl", "{\"text\": \"\"}\n{\"text\": \"abc\"}\n");
  const RowStatistics one = statistics_of(options_for({"one.jsonl"}), 8, false, /*has_eos=*/false);
  EXPECT_EQ(one.num_empty, 1);
  EXPECT_THAT(one.lengths, ElementsAre(3));
  expect_error(ExitCode::kBadData, {"the dataset is empty: 2 without text, 0 without a target"},
               [&] { statistics_of(options_for({"d.jsonl"}), 8, false, /*has_eos=*/false); });
}

TEST(PaddingShare, IsWhatBatchesAddToTheirRows) {
  const auto padding_share = [](std::vector<int32_t> lengths, int64_t batch_rows, int64_t max_length) {
    return tessera::padding_share(std::array{std::move(lengths)}, batch_rows, max_length);
  };
  EXPECT_DOUBLE_EQ(padding_share({4, 4, 4, 4}, 2, 10), 0);
  EXPECT_DOUBLE_EQ(padding_share({2, 6}, 2, 10), 1 - 8.0 / 12);
  EXPECT_DOUBLE_EQ(padding_share({2, 60}, 2, 6), 1 - 8.0 / 12) << "rows are cut first";
  EXPECT_DOUBLE_EQ(padding_share({2, 6}, 1, 10), 0) << "a batch of one row has no padding";
  const std::array<std::vector<int32_t>, 2> sides = {{{2, 6}, {3, 1}}};
  EXPECT_DOUBLE_EQ(tessera::padding_share(sides, 2, 10), 1 - 12.0 / 18)
      << "source and target are padded apart";
  EXPECT_DOUBLE_EQ(padding_share({}, 2, 10), 0);
}

}  // namespace
}  // namespace tessera
