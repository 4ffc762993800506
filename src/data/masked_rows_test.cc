#include "data/masked_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/rows/batch_plan.h"
#include "data/rows/row_statistics.h"
#include "expect_error.h"
#include "support/dataset_test_util.h"
#include "tensor/packed_batch.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr int64_t kVocabSize = kTestVocabSize + 1;

class MaskedRowsTest : public DatasetTest {
 protected:
  MaskedRowsTest() : encoder_(make_byte_tokenizer(folder_ / "encoder", {.has_mask = true})) {}

  DatasetOptions masked_options(const std::string& name, int64_t max_length = 16,
                                const Tokenizer* tokenizer = nullptr, Packing packing = Packing::kNone) {
    DatasetOptions options = options_for({name});
    options.add_special_tokens = true;
    options.packing = packing;
    use_masked_rows({}, max_length, &options);
    name_masking_tokens(tokenizer, kVocabSize, &*options.masking);
    return options;
  }
  Dataset open_masked(const DatasetOptions& options) {
    return Dataset::open(options, &encoder_, kVocabSize, pool_);
  }
  Dataset open_masked(const std::string& name, int64_t max_length = 16, Packing packing = Packing::kNone) {
    return open_masked(masked_options(name, max_length, &encoder_, packing));
  }
  static Dataset::Row row_of(const Dataset& dataset, int64_t row) {
    Dataset::Row content;
    dataset.read_row(row, &content);
    return content;
  }
  static std::string text_of(const std::vector<int32_t>& ids) {
    std::string text;
    for (const int32_t id : ids) text += id == kTestBos ? '<' : id == kTestEos ? '>' : static_cast<char>(id);
    return text;
  }

  Tokenizer encoder_;
};

TEST_F(MaskedRowsTest, TheRuleTakesItsTokensFromTheTokenizer) {
  MaskingRule rule;
  name_masking_tokens(&encoder_, kVocabSize, &rule);
  EXPECT_EQ(rule.mask_id, kTestMask);
  EXPECT_THAT(rule.special_ids, ElementsAre(kTestBos, kTestEos, kTestMask));
  EXPECT_EQ(rule.num_random_ids, kVocabSize);
  name_masking_tokens(&encoder_, kVocabSize + 5, &rule);
  EXPECT_EQ(rule.num_random_ids, kVocabSize) << "ids that only the model has are no tokens";
  expect_error(ExitCode::kBadConfig, {"the mask token has the id 258", "vocab_size 258"},
               [&] { name_masking_tokens(&encoder_, kTestVocabSize, &rule); });
  MaskingRule without;
  name_masking_tokens(&tokenizer_, kVocabSize, &without);
  EXPECT_FALSE(without.mask_id);
}

TEST_F(MaskedRowsTest, LabelsAreKeptOnePlaceFurtherOn) {
  folder_.write(
      "d.jsonl",
      "{\"input_ids\": [9, 10, 11, 0], \"labels\": [-100, 20, -100, 21], \"attention_mask\": [1, 1, 1, 0]}\n"
      "{\"input_ids\": [5, 6], \"labels\": [-100, -100], \"token_type_ids\": [0, 0]}\n"
      "{\"input_ids\": [7], \"labels\": [8]}\n");
  const Dataset dataset = open_masked(masked_options("d.jsonl"));  // no tokenizer is needed
  EXPECT_THAT(row_of(dataset, 0).input_ids, ElementsAre(9, 10, 11, 0));
  EXPECT_THAT(row_of(dataset, 0).labels, ElementsAre(-100, -100, 20, -100)) << "padding is dropped";
  EXPECT_THAT(row_of(dataset, 1).labels, ElementsAre(-100, -100, -100)) << "kept, as Trainer does";
  EXPECT_THAT(row_of(dataset, 2).labels, ElementsAre(-100, 8));
  EXPECT_EQ(dataset.row_length(0), 3);
  EXPECT_EQ(dataset.num_tokens(), 3 + 2 + 1);
  EXPECT_EQ(dataset.max_row_length(), 3);
  EXPECT_EQ(dataset.num_targets(), 2);
  EXPECT_EQ(dataset.row_num_targets(2), 1) << "also the first token of a row may be a target";
  EXPECT_NE(dataset.masking(), nullptr);
}

TEST_F(MaskedRowsTest, LongRowsAreCutToTheModelsPositions) {
  folder_.write("d.jsonl",
                "{\"input_ids\": [1, 2, 3, 4], \"labels\": [-100, 5, -100, 6]}\n"
                "{\"input_ids\": [1, 2, 3], \"labels\": [9, 9, 9]}\n");
  DatasetOptions options = masked_options("d.jsonl", 3);
  options.allow_truncation = true;
  const Dataset dataset = open_masked(options);
  EXPECT_EQ(dataset.row_length(0), 3);
  EXPECT_EQ(dataset.max_row_length(), 3);
  EXPECT_THAT(row_of(dataset, 0).labels, ElementsAre(-100, -100, 5, -100));
  EXPECT_THAT(row_of(dataset, 1).labels, ElementsAre(-100, 9, 9, 9));
  EXPECT_THAT(dataset.report().warnings,
              ElementsAre(HasSubstr("cut 1 of 2 documents to max_length 3: 1 token")));
  options.allow_truncation = false;
  expect_error(ExitCode::kBadConfig, {"longer than max_length 3"}, [&] { open_masked(options); });
  options.excess_length = ExcessLength::kDrop;
  EXPECT_EQ(open_masked(options).num_rows(), 1);
  options.excess_length = ExcessLength::kRaise;
  expect_error(ExitCode::kBadData, {"a row of 4 tokens is longer than max_length 3"},
               [&] { open_masked(options); });
}

// As AutoTokenizer(text, max_length=n, truncation=True) of Transformers.
TEST_F(MaskedRowsTest, TextsHaveTheTokenizersSpecialTokensAndKeepThemWhereTheyAreCut) {
  folder_.write("d.jsonl", "{\"text\": \"abcdef\"}\n{\"text\": \"xy\"}\n{\"text\": \"\"}\n");
  DatasetOptions options = masked_options("d.jsonl", 5, &encoder_);
  options.allow_truncation = true;
  const Dataset dataset = open_masked(options);
  ASSERT_EQ(dataset.num_rows(), 2) << "of an empty text nothing can be predicted";
  EXPECT_EQ(text_of(row_of(dataset, 0).input_ids), "<abc>");
  EXPECT_EQ(text_of(row_of(dataset, 1).input_ids), "<xy>");
  EXPECT_TRUE(row_of(dataset, 1).labels.empty()) << "texts have no token more";
  EXPECT_EQ(dataset.row_length(1), 4);
  EXPECT_EQ(dataset.max_row_length(), 5);
  options = masked_options("d.jsonl", 1, &encoder_);
  expect_error(ExitCode::kBadConfig, {"max_length: a length of 1 has no room for the 2 special tokens"},
               [&] { open_masked(options); });
}

// run_mlm.py joins texts with their special tokens and cuts them into blocks.
TEST_F(MaskedRowsTest, TextsArePacked) {
  folder_.write("d.txt", "abcd\nef\nghi\n");
  DatasetOptions options = masked_options("d.txt", 6, &encoder_, Packing::kJoined);
  options.text_per_line = true;
  const Dataset joined = open_masked(options);
  EXPECT_EQ(text_of(row_of(joined, 0).input_ids), "<abcd>");
  EXPECT_EQ(text_of(row_of(joined, 1).input_ids), "<ef><g");
  EXPECT_EQ(joined.max_row_length(), 6);
  options.packing = Packing::kIsolated;
  const Dataset isolated = open_masked(options);
  EXPECT_THAT(row_of(isolated, 1).sequence_lengths, ElementsAre(4, 2));
  folder_.write("ids.jsonl", "{\"input_ids\": [1, 2]}\n");
  options = masked_options("ids.jsonl", 6, &encoder_, Packing::kIsolated);
  expect_error(ExitCode::kBadConfig, {"packing joins texts", "leave packing out"},
               [&] { open_masked(options); });
}

TEST_F(MaskedRowsTest, RowsWithoutLabelsNeedAMaskToken) {
  folder_.write("ids.jsonl", "{\"input_ids\": [1, 2], \"labels\": [3, 4]}\n{\"input_ids\": [5, 6]}\n");
  folder_.write("d.txt", "abc");
  const Dataset mixed = open_masked("ids.jsonl");
  EXPECT_THAT(row_of(mixed, 1).labels, ElementsAre(kMaskedWhenUsed, 5, 6));
  const std::string why =
      "rows without labels are masked here, which needs a tokenizer (tokenizer.json) with a mask_token";
  for (const char* name : {"ids.jsonl", "d.txt"}) {
    expect_error(ExitCode::kBadConfig, {name, why}, [&] { open_masked(masked_options(name)); });
  }
}

TEST_F(MaskedRowsTest, TensorsAreRead) {
  write_integers(folder_ / "d.safetensors", {{"input_ids", {2, 3}, {1, 2, 3, 4, 5, 0}},
                                             {"labels", {2, 3}, {-100, 7, -100, 8, -100, -100}},
                                             {"attention_mask", {2, 3}, {1, 1, 1, 1, 1, 0}}});
  const Dataset labelled = open_masked(masked_options("d.safetensors"));
  EXPECT_THAT(row_of(labelled, 0).labels, ElementsAre(-100, -100, 7, -100));
  EXPECT_THAT(row_of(labelled, 1).input_ids, ElementsAre(4, 5, 0));
  EXPECT_EQ(labelled.row_length(1), 2);
  write_integers(folder_ / "ids.safetensors", {{"input_ids", {2, 2}, {1, 2, 3, 4}}});
  const Dataset plain = open_masked("ids.safetensors");
  EXPECT_TRUE(row_of(plain, 0).labels.empty());
  EXPECT_EQ(plain.row_length(0), 2);
  expect_error(ExitCode::kBadConfig, {"ids.safetensors: tensor 'input_ids'", "mask_token"},
               [&] { open_masked(masked_options("ids.safetensors")); });
  write_integers(folder_ / "bad.safetensors", {{"input_ids", {1, 2}, {1, 2}}, {"labels", {2}, {1, 2}}});
  expect_error(ExitCode::kBadData, {"bad.safetensors", "labels", "shape"},
               [&] { open_masked(masked_options("bad.safetensors")); });
}

TEST_F(MaskedRowsTest, TokenTypesComeWithTheirTokens) {
  const auto write = [&](int first_type) {
    folder_.write(
        "d.jsonl",
        fmt::format("{{\"input_ids\": [0, 5, 6, 7], \"labels\": [-100, 9, -100, 8], \"token_type_ids\": "
                    "[0, {}, 1, 1], \"attention_mask\": [0, 1, 1, 1]}}\n"
                    "{{\"input_ids\": [3, 4], \"labels\": [5, -100]}}\n"
                    "{{\"input_ids\": [1, 2, 3, 4, 5], \"labels\": [-100, 1, 1, 1, 1], \"token_type_ids\": "
                    "[1, 0, 0, 2, 1]}}\n",
                    first_type));
  };
  write(9);
  DatasetOptions options = masked_options("d.jsonl", 4);
  options.masking->num_token_types = 3;
  options.allow_truncation = true;
  expect_error(ExitCode::kBadData, {"'token_type_ids': value 0", "from 0 to 2, found 9"},
               [&] { open_masked(options); });
  write(0);
  const Dataset dataset = open_masked(options);
  EXPECT_THAT(row_of(dataset, 0).input_ids, ElementsAre(5, 6, 7, 0));
  EXPECT_THAT(row_of(dataset, 0).token_types, ElementsAre(0, 1, 1, 0));
  EXPECT_TRUE(row_of(dataset, 1).token_types.empty());
  EXPECT_THAT(row_of(dataset, 2).token_types, ElementsAre(1, 0, 0, 2, 0)) << "cut as the ids are";
  PackedBatch batch;
  make_packed_batch(dataset, std::vector<int64_t>{1, 0, 2, 1}, 0, &batch);
  EXPECT_THAT(batch.input_ids, ElementsAre(3, 4, 5, 6, 7, 1, 2, 3, 4, 3, 4));
  EXPECT_THAT(batch.token_types, ElementsAre(0, 0, 0, 1, 1, 1, 0, 0, 2, 0, 0));
  make_packed_batch(dataset, std::vector<int64_t>{1}, 0, &batch);
  EXPECT_TRUE(batch.token_types.empty());
}

TEST_F(MaskedRowsTest, TensorsHaveTokenTypes) {
  write_integers(folder_ / "d.safetensors", {{"input_ids", {2, 3}, {0, 5, 6, 3, 4, 0}},
                                             {"labels", {2, 3}, {-100, 9, -100, 5, -100, -100}},
                                             {"token_type_ids", {2, 3}, {0, 0, 1, 0, 0, 0}},
                                             {"attention_mask", {2, 3}, {0, 1, 1, 1, 1, 0}}});
  DatasetOptions options = masked_options("d.safetensors", 4);
  options.masking->num_token_types = 2;
  EXPECT_THAT(row_of(open_masked(options), 0).token_types, ElementsAre(0, 1, 0));
  options.masking->num_token_types = 1;
  expect_error(ExitCode::kBadData, {"tensor 'token_type_ids'", "from 0 to 0, found 1"},
               [&] { open_masked(options); });
}

TEST_F(MaskedRowsTest, WhatAnEncoderCannotReadIsRefused) {
  const auto refuse = [&](const char* row, std::vector<std::string> words) {
    folder_.write("bad.jsonl", std::string(row) + "\n");
    expect_error(ExitCode::kBadData, words, [&] { open_masked("bad.jsonl"); });
  };
  refuse(R"({"input_ids": [1, 2], "token_type_ids": [0, 1]})",
         {"token_type_ids", "value 1", "the model's only token type"});
  refuse(R"({"input_ids": [1, 2], "position_ids": [0, 0]})", {"position_ids", "one text each"});
  refuse(R"({"input_ids": [1, 2], "completion_mask": [0, 1]})", {"completion_mask"});
  refuse(R"({"input_ids": [1, 2], "labels": [1]})", {"labels", "2 values"});
  refuse(R"({"input_ids": [1, 2], "labels": [1, 259]})", {"'labels': value 1", "found 259"});
  refuse(R"({"messages": [{"role": "user", "content": "a"}]})", {"the model is an encoder", "--text_column"});
}

TEST_F(MaskedRowsTest, StatisticsCountTokensAndTargets) {
  folder_.write(
      "d.jsonl",
      "{\"input_ids\": [9, 10, 11], \"labels\": [-100, 20, 21]}\n{\"input_ids\": [5, 6], \"labels\": "
      "[7, -100]}\n");
  const DatasetOptions options = masked_options("d.jsonl");
  const RowPlan plan = plan_rows(options.sources, options);
  const RowStatistics found = row_statistics(plan, options, nullptr, kVocabSize, {.max_length = 16}, &pool_);
  EXPECT_THAT(found.lengths, ElementsAre(2, 3));
  EXPECT_EQ(found.num_targets, 3);
}

}  // namespace
}  // namespace tessera
