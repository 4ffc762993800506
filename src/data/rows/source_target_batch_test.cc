#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "data/rows/batch_plan.h"
#include "support/dataset_test_util.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

constexpr int32_t kStartId = 3;
constexpr int32_t kPadId = 4;

class SourceTargetBatchTest : public DatasetTest {
 protected:
  Dataset open_rows(const std::string& file) {
    folder_.write("d.jsonl", file);
    DatasetOptions options = options_for({"d.jsonl"});
    use_sources_and_targets({.decoder_start_token_id = kStartId, .pad_token_id = kPadId}, {}, &options);
    return open(options);
  }
};

TEST_F(SourceTargetBatchTest, AllSourcesComeFirst) {
  const Dataset dataset = open_rows(
      "{\"input_ids\": [10, 11, 12], \"labels\": [20, -100, 22]}\n{\"input_ids\": [13], \"labels\": [23]}\n");
  PackedBatch batch;
  make_packed_batch(dataset, std::array<int64_t, 2>{1, 0}, 0, &batch);
  EXPECT_THAT(batch.input_ids, ElementsAre(13, 10, 11, 12, kStartId, kStartId, 20, kPadId));
  EXPECT_THAT(batch.positions, ElementsAre(0, 0, 1, 2, 0, 0, 1, 2));
  EXPECT_THAT(batch.targets, ElementsAre(-100, -100, -100, -100, 23, 20, -100, 22));
  EXPECT_THAT(batch.cu_seqlens, ElementsAre(0, 1, 4, 5, 8));
  EXPECT_EQ(batch.num_sources, 2);
  EXPECT_EQ(batch.num_rows(), 2);
  EXPECT_EQ(batch.num_source_tokens(), 4);
  EXPECT_EQ(batch.num_targets, 3);
  EXPECT_EQ(batch.num_tokens(), dataset.num_tokens());

  folder_.write("plain.jsonl", "{\"text\": \"ab\"}\n");
  make_packed_batch(open(options_for({"plain.jsonl"})), std::array<int64_t, 1>{0}, 0, &batch);
  EXPECT_EQ(batch.num_sources, 0) << "the memory of another batch is reused";
}

// The decoder's inputs and targets of every row, by Transformers' rule, from the rows that were written.
TEST_F(SourceTargetBatchTest, EveryRowIsShiftedAsTransformersDoes) {
  constexpr uint32_t kSeed = 11;
  std::mt19937 random(kSeed);
  struct Pair {
    std::vector<int32_t> ids, labels;
  };
  std::vector<Pair> pairs(200);
  std::string file;
  for (Pair& pair : pairs) {
    pair.ids.resize(1 + random() % 20);
    pair.labels.resize(1 + random() % 9);
    for (int32_t& id : pair.ids) id = static_cast<int32_t>(random() % 250);
    for (int32_t& label : pair.labels)
      label = random() % 4 == 0 ? kIgnoredLabel : static_cast<int32_t>(random() % 250);
    pair.labels.back() = static_cast<int32_t>(random() % 250);
    file += fmt::format("{{\"input_ids\": [{}], \"labels\": [{}]}}\n", fmt::join(pair.ids, ","),
                        fmt::join(pair.labels, ","));
  }
  const Dataset dataset = open_rows(file);
  ASSERT_EQ(dataset.num_rows(), std::ssize(pairs));
  PackedBatch batch;
  for (int64_t begin = 0; begin < dataset.num_rows(); begin += 7) {
    std::vector<int64_t> rows;
    int64_t num_tokens = 0, num_targets = 0;
    for (int64_t row = begin; row < std::min(begin + 7, dataset.num_rows()); ++row) {
      rows.push_back(row);
      num_tokens += dataset.row_length(row);
      num_targets += dataset.row_num_targets(row);
    }
    make_packed_batch(dataset, rows, 0, &batch);
    EXPECT_EQ(batch.num_tokens(), num_tokens);
    EXPECT_EQ(batch.num_targets, num_targets);
    EXPECT_EQ(batch.num_sources, std::ssize(rows));
    for (size_t i = 0; i < rows.size(); ++i) {
      const Pair& pair = pairs[static_cast<size_t>(rows[i])];
      const auto sequence = [&](size_t number, const std::vector<int32_t>& values) {
        return std::vector<int32_t>(values.begin() + batch.cu_seqlens[number],
                                    values.begin() + batch.cu_seqlens[number + 1]);
      };
      EXPECT_EQ(sequence(i, batch.input_ids), pair.ids) << "seed " << kSeed;
      EXPECT_EQ(sequence(i, batch.targets), std::vector<int32_t>(pair.ids.size(), kIgnoredLabel));
      // shift_tokens_right(labels, pad_token_id, decoder_start_token_id)
      std::vector<int32_t> shifted = {kStartId};
      for (size_t t = 0; t + 1 < pair.labels.size(); ++t)
        shifted.push_back(pair.labels[t] == kIgnoredLabel ? kPadId : pair.labels[t]);
      EXPECT_EQ(sequence(rows.size() + i, batch.input_ids), shifted) << "seed " << kSeed;
      EXPECT_EQ(sequence(rows.size() + i, batch.targets), pair.labels) << "seed " << kSeed;
      EXPECT_EQ(sequence(rows.size() + i, batch.positions).back(), std::ssize(pair.labels) - 1);
    }
  }
}

}  // namespace
}  // namespace tessera
