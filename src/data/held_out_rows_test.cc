// The rows that are held out for evaluation, before they are packed and after that.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>

#include "base/error.h"
#include "expect_error.h"
#include "support/dataset_test_util.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// The rows of datasets' train[:20%] and train[20%:], each packed separately.
TEST_F(DatasetTest, RowsAreHeldOutBeforeTheyArePacked) {
  std::string first, second;
  for (const int length : {1, 9, 2, 8, 3})
    first += fmt::format("{{\"text\": \"{}\"}}\n", std::string(length, 'a'));
  for (const int length : {7, 4, 6, 5, 9})
    second += fmt::format("{{\"text\": \"{}\"}}\n", std::string(length, 'b'));
  folder_.write("a.jsonl", first);
  folder_.write("b.jsonl", second);
  DatasetOptions options = options_for({"a.jsonl", "b.jsonl"});
  options.max_length = 10;
  options.packing = Packing::kBestFit;
  const Dataset whole = open(options);
  options.held_out = {20, true};
  const Dataset held = open(options);
  EXPECT_THAT(texts_of(held), ElementsAre("aaaaaaaaa</s>", "a</s>"));
  options.held_out = {20, false};
  const Dataset rest = open(options);
  EXPECT_THAT(texts_of(rest), ElementsAre("bbbbbbbbb</s>", "aaaaaaaa</s>", "bbbbbbb</s>", "bbbbbb</s>aa</s>",
                                          "bbbbb</s>aaa</s>", "bbbb</s>"));
  EXPECT_THAT((std::set{whole.fingerprint(), held.fingerprint(), rest.fingerprint()}), testing::SizeIs(3));
  EXPECT_EQ(held.num_tokens() + rest.num_tokens(), whole.num_tokens());
  // More than the first file has, of rows that are not packed, and of a part of the rows.
  options.packing = Packing::kNone;
  options.held_out = {60, true};
  EXPECT_EQ(texts_of(open(options)).back(), "bbbbbbb</s>");
  options.sources.pop_back();
  options.sources[0].format.rows = RowSlice{1, 4};
  options.held_out = {30, true};
  EXPECT_THAT(texts_of(open(options)), ElementsAre("aaaaaaaaa</s>"));
  options.held_out = {30, false};
  EXPECT_THAT(texts_of(open(options)), ElementsAre("aa</s>", "aaaaaaaa</s>"));
  options.sources[0].format.rows = RowSlice{1, 2};
  EXPECT_THAT(error_of([&] { open(options); }).what(),
              HasSubstr("expected at least 2 rows to split, found 1"));
}

TEST_F(DatasetTest, TheFirstRowsOfEveryPartAreSplitOff) {
  std::string lines;
  for (int i = 0; i < 20; ++i) lines += fmt::format("{{\"text\": \"row {}\"}}\n", i);
  folder_.write("a.jsonl", lines);
  folder_.write("b.jsonl", "{\"text\": \"b1\"}\n{\"text\": \"b2\"}\n");
  DatasetOptions options = options_for({"a.jsonl", "b.jsonl"});
  options.sources[0].weight = options.sources[1].weight = 1;
  Dataset train = open(options);
  const int64_t num_tokens = train.num_tokens();
  const std::string whole = train.fingerprint();
  const Dataset eval = train.split_off(10);
  EXPECT_THAT(texts_of(eval), ElementsAre("row 0</s>", "row 1</s>", "b1</s>"));
  EXPECT_EQ(train.num_rows(), 19);
  EXPECT_EQ(texts_of(train).front(), "row 2</s>");
  EXPECT_EQ(texts_of(train).back(), "b2</s>");
  EXPECT_EQ(train.num_tokens() + eval.num_tokens(), num_tokens);
  EXPECT_EQ(eval.max_row_length(), 6);
  EXPECT_THAT((std::set{whole, train.fingerprint(), eval.fingerprint()}), testing::SizeIs(3));
  folder_.write("c.txt", "a single row");
  Dataset single = open(options_for({"c.txt"}));
  EXPECT_THAT(error_of([&] { single.split_off(5); }).what(), HasSubstr("expected at least 2 rows to split"));
}

}  // namespace
}  // namespace tessera
