// The columns beside input_ids, in JSON and safetensors files, as TRL 1.16 and Transformers 5.24 use them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "expect_error.h"
#include "support/dataset_test_util.h"
#include "tensor/packed_batch.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class TokenColumns : public DatasetTest {
 protected:
  Dataset::Row row_of(const std::string& json) {
    folder_.write("d.jsonl", json + "\n");
    return first_row(options_for({"d.jsonl"}));
  }
  Dataset::Row first_row(const DatasetOptions& options) {
    Dataset::Row row;
    open(options).read_row(0, &row);
    return row;
  }
  std::string refusal_of(const std::string& json) {
    const Error error = error_of([&] { row_of(json); });
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    return error.what();
  }
};

constexpr int32_t kNone = kIgnoredLabel;

TEST_F(TokenColumns, LabelsAreTheIdsWhereEveryMaskIsOne) {
  const std::string both =
      R"({"input_ids": [5, 6, 7, 8], "completion_mask": [0, 0, 1, 1], "assistant_masks": [false, true, true, false]})";
  EXPECT_THAT(row_of(both).labels, ElementsAre(kNone, kNone, 7, kNone));
  DatasetOptions options = options_for({"d.jsonl"});
  options.reads_completion_mask = false;  // TRL reads it under completion_only_loss alone
  EXPECT_THAT(first_row(options).labels, ElementsAre(kNone, 6, 7, kNone));
  // Labels that are given stay.
  EXPECT_THAT(
      row_of(R"({"input_ids": [5, 6, 7], "labels": [-100, 6, 7], "completion_mask": [0, 0, 1]})").labels,
      ElementsAre(kNone, 6, 7));
  EXPECT_THAT(refusal_of(R"({"input_ids": [5, 6], "completion_mask": [0]})"),
              HasSubstr("column 'completion_mask': expected 2 values as input_ids has, found 1"));
  EXPECT_THAT(refusal_of(R"({"input_ids": [5, 6], "assistant_masks": [0, 2]})"),
              HasSubstr("column 'assistant_masks': value 1: expected 0 or 1, found 2"));
}

TEST_F(TokenColumns, DocumentsOfPackedRowsAreApart) {
  for (const char* column : {R"("position_ids": [0, 1, 2, 0, 1])", R"("seq_lengths": [3, 2])"}) {
    const Dataset::Row row = row_of(std::string(R"({"input_ids": [5, 6, 7, 8, 9], )") + column + "}");
    EXPECT_THAT(row.sequence_lengths, ElementsAre(3, 2)) << column;
  }
  EXPECT_THAT(
      row_of(R"({"input_ids": [5, 6, 7], "position_ids": [0, 1, 2], "seq_lengths": [3]})").sequence_lengths,
      ElementsAre(3));
  // Padding goes first.
  EXPECT_THAT(
      row_of(R"({"input_ids": [5, 6, 7, 0], "position_ids": [0, 0, 1, 1], "attention_mask": [1, 1, 1, 0]})")
          .sequence_lengths,
      ElementsAre(1, 2));
}

TEST_F(TokenColumns, DocumentsThatAreCutEndWhereTheRowEnds) {
  folder_.write("d.jsonl", R"({"input_ids": [5, 6, 7, 8, 9, 10], "seq_lengths": [2, 3, 1]})");
  DatasetOptions options = options_for({"d.jsonl"});
  options.allow_truncation = true;
  options.max_length = 4;
  EXPECT_THAT(first_row(options).sequence_lengths, ElementsAre(2, 2));
  options.max_length = 2;
  EXPECT_THAT(first_row(options).sequence_lengths, ElementsAre(2));
  // Packed again, with the documents of other rows.
  folder_.write("d.jsonl",
                "{\"input_ids\": [5, 6, 7, 8, 9], \"seq_lengths\": [2, 3]}\n{\"input_ids\": [4, 5]}\n");
  options.packing = Packing::kIsolated;
  options.max_length = 7;
  EXPECT_THAT(first_row(options).sequence_lengths, ElementsAre(2, 3, 2));
}

TEST_F(TokenColumns, LengthsAndPositionsThatFitNoRowAreRefused) {
  EXPECT_THAT(refusal_of(R"({"input_ids": [5, 6, 7], "position_ids": [1, 2, 3]})"),
              HasSubstr("column 'position_ids': value 0: expected 0, found 1"));
  EXPECT_THAT(refusal_of(R"({"input_ids": [5, 6, 7], "position_ids": [0, 1, 3]})"),
              HasSubstr("value 2: expected 2, or 0 where a document begins, found 3"));
  EXPECT_THAT(
      refusal_of(R"({"input_ids": [5, 6, 7], "seq_lengths": [2, 2]})"),
      HasSubstr(
          "column 'seq_lengths': expected lengths of 1 or more that add up to the 3 values of input_ids, "
          "found 2, 2"));
  EXPECT_THAT(refusal_of(R"({"input_ids": [5, 6, 7], "seq_lengths": [4, -1]})"), HasSubstr("found 4, -1"));
  EXPECT_THAT(refusal_of(R"({"input_ids": [5, 6, 7], "seq_lengths": [1, 2], "position_ids": [0, 1, 0]})"),
              HasSubstr("found 1, 2, but position_ids start again after 2, 1"));
}

TEST_F(TokenColumns, SafetensorsHaveThemToo) {
  write_integers(folder_ / "a.safetensors", {{"input_ids", {2, 4}, {5, 6, 7, 8, 9, 10, 11, 12}},
                                             {"completion_mask", {2, 4}, {0, 0, 1, 1, 1, 1, 1, 0}},
                                             {"assistant_masks", {2, 4}, {1, 1, 1, 1, 1, 0, 1, 1}},
                                             {"position_ids", {2, 4}, {0, 1, 2, 3, 0, 1, 0, 1}}});
  const Dataset dataset = open(options_for({"a.safetensors"}));
  Dataset::Row row;
  dataset.read_row(0, &row);
  EXPECT_THAT(row.labels, ElementsAre(kNone, kNone, 7, 8));
  EXPECT_THAT(row.sequence_lengths, ElementsAre(4));
  dataset.read_row(1, &row);
  EXPECT_THAT(row.labels, ElementsAre(9, kNone, 11, kNone));
  EXPECT_THAT(row.sequence_lengths, ElementsAre(2, 2));
  DatasetOptions options = options_for({"a.safetensors"});
  options.reads_completion_mask = false;
  EXPECT_THAT(first_row(options).labels, ElementsAre(5, 6, 7, 8));
}

}  // namespace
}  // namespace tessera
