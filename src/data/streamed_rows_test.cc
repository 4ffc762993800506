#include "data/streamed_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <set>
#include <thread>

#include "base/error.h"
#include "data/rows/batch_plan.h"
#include "expect_error.h"
#include "support/dataset_test_util.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using ::testing::SizeIs;

class StreamedRowsTest : public DatasetTest {
 protected:
  // Documents of 2 to 30 letters.
  DatasetOptions write_documents(const std::string& name, int64_t count, uint32_t seed) {
    std::mt19937 random(seed);
    std::string lines;
    for (int64_t i = 0; i < count; ++i)
      lines += fmt::format("{{\"text\": \"{}\"}}\n",
                           std::string(2 + random() % 29, static_cast<char>('a' + i % 26)));
    folder_.write(name, lines);
    DatasetOptions options = options_for({name});
    options.max_length = 32;
    return options;
  }
  std::unique_ptr<StreamedRows> stream(const DatasetOptions& options) {
    return std::make_unique<StreamedRows>(options.sources, options, &tokenizer_, kTestVocabSize, pool_);
  }
  static std::vector<std::vector<int32_t>> all_rows(const StreamedRows& rows) {
    std::vector<std::vector<int32_t>> ids;
    for (int64_t block = 0;; ++block) {
      const int64_t count = rows.wait_for_block(block);
      for (int64_t i = 0; i < count; ++i) {
        int64_t row = block * rows.block_rows() + i;
        std::vector<int32_t> labels, lengths;
        const auto cache = rows.block_of(&row);
        cache->read_row(row, &ids.emplace_back(), &labels, &lengths);
      }
      if (count < rows.block_rows()) return ids;
    }
  }
};

TEST_F(StreamedRowsTest, AreThoseOfTheWholeDatasetInBlocks) {
  for (const int64_t count : {1, 64, 700}) {
    for (const int64_t block_rows : {1, 7, 64, 1000}) {
      for (const Packing packing : {Packing::kNone, Packing::kIsolated}) {
        if (count == 700 && block_rows == 1) continue;
        DatasetOptions options = write_documents(fmt::format("{}.jsonl", count), count, 3);
        options.packing = packing;
        const auto expected = ids_of(open(options));
        options.streaming_buffer_rows = block_rows;
        const auto rows = stream(options);
        EXPECT_EQ(all_rows(*rows), expected) << count << " documents, blocks of " << block_rows;
        EXPECT_EQ(rows->num_rows(), std::ssize(expected));
        EXPECT_EQ(rows->wait_for_block(std::ssize(expected) / block_rows + 1), 0);
      }
    }
  }
}

TEST_F(StreamedRowsTest, RowsWithoutALabelAreDropped) {
  std::string lines;
  for (int i = 0; i < 30; ++i) {
    lines += fmt::format("{{\"prompt\": \"{}\", \"completion\": \"{}\"}}\n",
                         std::string(i % 3 == 0 ? 9 : 2, 'p'), i);
  }
  folder_.write("d.jsonl", lines);
  DatasetOptions options = options_for({"d.jsonl"});
  options.max_length = 8;
  options.allow_truncation = true;
  const auto expected = ids_of(open(options));
  EXPECT_THAT(expected, SizeIs(20));
  options.streaming_buffer_rows = 4;
  EXPECT_EQ(all_rows(*stream(options)), expected);
}

TEST_F(StreamedRowsTest, AChangeInTheMiddleOfAFileGivesOtherBlocks) {
  const DatasetOptions options = write_documents("d.jsonl", 150'000, 7);
  const std::string key = stream(options)->key();
  EXPECT_EQ(stream(options)->key(), key);
  std::string lines = read_text_file(folder_ / "d.jsonl");
  ASSERT_GT(lines.size(), size_t{3} << 20);
  const std::string begin = "{\"text\": \"";
  lines[lines.find(begin, lines.size() / 2) + begin.size()] = 'A';
  folder_.write("d.jsonl", lines);
  EXPECT_NE(stream(options)->key(), key);
}

TEST_F(StreamedRowsTest, BlocksOfAnInterruptedRunAreUsedAndContinued) {
  DatasetOptions options = write_documents("d.jsonl", 500, 5);
  options.streaming_buffer_rows = 50;
  std::string key;
  std::vector<std::vector<int32_t>> expected;
  {
    const auto rows = stream(options);
    key = rows->key();
    expected = all_rows(*rows);
  }
  const fs::path cache = options.cache_folder;
  const auto block = [&](int64_t number) { return cache / fmt::format("{}-{}.tokens", key, number); };
  const auto made = fs::last_write_time(block(1));
  fs::remove(cache / (key + ".end"));
  for (int64_t number = 4; number < 10; ++number) fs::remove(block(number));
  const auto rows = stream(options);
  EXPECT_EQ(rows->key(), key);
  EXPECT_EQ(all_rows(*rows), expected);
  EXPECT_EQ(fs::last_write_time(block(1)), made) << "written again";
}

TEST_F(StreamedRowsTest, ABlockDeletedAfterTheEndIsWrittenAgain) {
  DatasetOptions options = write_documents("d.jsonl", 300, 5);
  options.streaming_buffer_rows = 50;
  std::string key;
  std::vector<std::vector<int32_t>> expected;
  {
    const auto rows = stream(options);
    key = rows->key();
    expected = all_rows(*rows);
    // It appears after the last block.
    for (const fs::path end = options.cache_folder / (key + ".end"); !fs::exists(end);)
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_TRUE(fs::remove(options.cache_folder / (key + "-2.tokens")));
  EXPECT_EQ(all_rows(*stream(options)), expected);
}

TEST_F(StreamedRowsTest, SeveralReadersShareTheBlocks) {
  DatasetOptions options = write_documents("d.jsonl", 300, 9);
  options.streaming_buffer_rows = 32;
  const auto first = stream(options);
  const auto second = stream(options);
  EXPECT_EQ(all_rows(*second), all_rows(*first));
}

TEST_F(StreamedRowsTest, ABadRowEndsTheRunWhenItIsReached) {
  DatasetOptions options = write_documents("d.jsonl", 600, 7);
  std::ofstream(folder_ / "d.jsonl", std::ios::app) << "{\"text\": 5}\n";
  options.streaming_buffer_rows = 100;
  const auto rows = stream(options);
  EXPECT_THAT(error_of([&] { all_rows(*rows); }).what(),
              HasSubstr("d.jsonl: line 601: column 'text': expected a string"));
  options.skip_bad_rows = true;
  EXPECT_THAT(all_rows(*stream(options)), SizeIs(600));
}

TEST_F(StreamedRowsTest, DroppingMoreThanATenthIsRefusedEarly) {
  DatasetOptions options = write_documents("d.jsonl", 600, 7);
  options.max_length = 4;
  options.streaming_buffer_rows = 10;
  const auto rows = stream(options);
  EXPECT_THAT(error_of([&] { all_rows(*rows); }).what(), HasSubstr("would be dropped"));
}

TEST_F(StreamedRowsTest, WhatNeedsTheNumberOfRowsIsRefused) {
  DatasetOptions options = write_documents("d.jsonl", 20, 7);
  options.streaming = true;
  Dataset dataset = open(options);
  EXPECT_NE(dataset.supply(), nullptr);
  EXPECT_EQ(dataset.max_row_length(), 32);
  EXPECT_EQ(error_of([&] { dataset.split_off(10); }).code(), ExitCode::kBadConfig);
  options.sources[0].weight = 1;
  EXPECT_THAT(error_of([&] { open(options); }).what(), HasSubstr("sources cannot have weights"));
  write_integers(folder_ / "t.safetensors", {{"input_ids", {2, 3}, {1, 2, 3, 4, 5, 6}}});
  DatasetOptions tokens = options_for({"t.safetensors"});
  tokens.streaming = true;
  EXPECT_THAT(error_of([&] { open(tokens); }).what(), HasSubstr("leave --streaming out"));
}

// 25 rows in blocks of 10, whose end is known once the last block was asked for.
class Supply : public RowSupply {
 public:
  int64_t block_rows() const override { return 10; }
  std::optional<int64_t> find_block(int64_t block) const override {
    asked_ = std::max(asked_, block);
    return std::clamp<int64_t>(25 - 10 * block, 0, 10);
  }
  int64_t wait_for_block(int64_t block) const override { return *find_block(block); }
  void release_before(int64_t) const override {}
  std::optional<int64_t> num_rows() const override {
    return asked_ >= 2 ? std::optional<int64_t>(25) : std::nullopt;
  }

 private:
  mutable int64_t asked_ = -1;
};

TEST(SupplyOfRows, EveryPassTakesEveryRowOnceBlockByBlock) {
  for (const bool shuffle : {false, true}) {
    const Supply supply;
    BatchPlanOptions options = {.num_rows = 100, .micro_batch_size = 4, .gradient_accumulation_steps = 1};
    options.shuffle = shuffle;
    options.supply = &supply;
    const BatchPlan plan(options);
    EXPECT_EQ(plan.steps_per_epoch(), 25);
    std::vector<int64_t> rows;
    for (int64_t step = 0; step < 25; ++step) {
      const std::vector<int64_t> of_step = plan.rows_of_step(step).at(0);
      rows.insert(rows.end(), of_step.begin(), of_step.end());
    }
    ASSERT_EQ(rows.size(), 100u);
    for (int64_t pass = 0; pass < 4; ++pass) {
      const auto begin = rows.begin() + 25 * pass;
      EXPECT_THAT(std::set<int64_t>(begin, begin + 25), SizeIs(25));
      EXPECT_LT(*std::max_element(begin, begin + 10), 10) << "the first block comes first";
    }
    const bool repeats = std::equal(rows.begin(), rows.begin() + 25, rows.begin() + 25);
    EXPECT_EQ(repeats, !shuffle);
    EXPECT_EQ(plan.rows_of_step(3), BatchPlan(options).rows_of_step(3)) << "in any order";
  }
}

}  // namespace
}  // namespace tessera
