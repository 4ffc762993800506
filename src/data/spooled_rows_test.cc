// Rows that another process feeds while they are used.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <random>
#include <set>
#include <stdexcept>
#include <thread>

#include "data/streamed_rows.h"
#include "expect_error.h"
#include "support/dataset_test_util.h"
#include "support/row_feeder.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

using Rows = std::vector<std::vector<int32_t>>;

std::vector<std::string> random_documents(int64_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::string> rows;
  for (int64_t i = 0; i < count; ++i)
    rows.push_back(
        fmt::format("{{\"text\": \"{}\"}}", std::string(2 + random() % 29, static_cast<char>('a' + i % 26))));
  return rows;
}

class SpooledRowsTest : public DatasetTest {
 protected:
  DatasetOptions options_of(const std::string& reading, int64_t block_rows,
                            const std::string& spool = "spool") const {
    DatasetOptions options = options_for({spool + "/tokenized/first.jsonl"});
    options.max_length = 32;
    options.streaming_buffer_rows = block_rows;
    options.spool = {folder_ / spool, reading};
    return options;
  }
  std::unique_ptr<StreamedRows> stream(const DatasetOptions& options) {
    return std::make_unique<StreamedRows>(options.sources, options, &tokenizer_, kTestVocabSize, pool_);
  }
  // The rows of a block, once it is there.
  static Rows rows_of(const StreamedRows& rows, int64_t block) {
    Rows ids(static_cast<size_t>(rows.wait_for_block(block)));
    for (int64_t i = 0; i < std::ssize(ids); ++i) {
      int64_t row = block * rows.block_rows() + i;
      std::vector<int32_t> labels, lengths;
      const auto cache = rows.block_of(&row);
      cache->read_row(row, &ids[static_cast<size_t>(i)], &labels, &lengths);
    }
    return ids;
  }
  // All rows; each block is released when the next one is read.
  static Rows all_rows(const StreamedRows& rows) {
    Rows ids;
    for (int64_t block = 0;; ++block) {
      rows.release_before(block);
      const Rows more = rows_of(rows, block);
      ids.insert(ids.end(), more.begin(), more.end());
      if (std::ssize(more) < rows.block_rows()) return ids;
    }
  }
  // The rows that the same lines in a file give.
  Rows rows_of_file(const std::vector<std::string>& lines, DatasetOptions options) {
    folder_.write("whole.jsonl", fmt::format("{}\n", fmt::join(lines, "\n")));
    options.spool.reset();
    options.sources = options_for({"whole.jsonl"}).sources;
    return ids_of(open(options));
  }
  std::set<std::string> files_in(const std::string& folder) const {
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_ / folder))
      names.insert(entry.path().filename().string());
    return names;
  }
  std::set<std::string> blocks() const {
    std::set<std::string> names;
    for (const std::string& name : files_in("spool/tokenized"))
      if (name.ends_with(".tokens") && !name.starts_with('.')) names.insert(name);
    return names;
  }
  void wait_for(const std::string& name) const {
    while (!fs::exists(folder_ / name)) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
};

TEST_F(SpooledRowsTest, AreThoseOfAFileWithTheSameRows) {
  const std::vector<std::string> lines = random_documents(60, 3);
  int number = 0;
  for (const size_t rows_per_file : {2, 7, 1000}) {
    for (const int64_t block_rows : {7, 30, 1000}) {
      for (const Packing packing : {Packing::kNone, Packing::kBestFit}) {
        const std::string spool = fmt::format("spool{}", ++number);
        DatasetOptions options = options_of("start", block_rows, spool);
        options.packing = packing;
        const RowFeeder feeder(folder_ / spool, lines, {.rows_per_file = rows_per_file});
        EXPECT_EQ(all_rows(*stream(options)), rows_of_file(lines, options))
            << rows_per_file << " rows a file, blocks of " << block_rows;
        EXPECT_EQ(files_in(spool), (std::set<std::string>{"end", "feeder", "tokenized"})) << "all are read";
      }
    }
  }
}

TEST_F(SpooledRowsTest, TokensAreTakenWithoutTheirPadding) {
  const std::vector<std::string> lines = {
      R"({"input_ids": [5, 6, 7, 0], "attention_mask": [1, 1, 1, 0], "labels": [-100, 6, 7, -100]})",
      R"({"input_ids": [0, 0, 8, 9], "attention_mask": [0, 0, 1, 1], "labels": [-100, -100, 8, 9]})"};
  const RowFeeder feeder(folder_ / "spool", lines);
  const auto rows = stream(options_of("start", 8));
  EXPECT_THAT(all_rows(*rows), ElementsAre(ElementsAre(5, 6, 7), ElementsAre(8, 9)));
}

TEST_F(SpooledRowsTest, BlocksAreMadeTwoAheadAndDeletedWhenTheyAreReleased) {
  const RowFeeder feeder(folder_ / "spool", random_documents(200, 5));
  {
    const auto rows = stream(options_of("start", 10));
    wait_for("spool/tokenized/start-1.tokens");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_THAT(blocks(), ElementsAre("start-0.tokens", "start-1.tokens"));
    EXPECT_EQ(rows->num_rows(), std::nullopt);
    rows->wait_for_block(3);
    wait_for("spool/tokenized/start-5.tokens");
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    EXPECT_THAT(blocks(), SizeIs(6));
    rows->release_before(3);
    EXPECT_THAT(blocks(), ElementsAre("start-3.tokens", "start-4.tokens", "start-5.tokens"));
  }
  EXPECT_THAT(blocks(), IsEmpty()) << "at the end";
}

// A resuming run does this: only the blocks that it needs are written.
TEST_F(SpooledRowsTest, BlocksBeforeTheFirstOneThatIsNeededAreNotKept) {
  const std::vector<std::string> lines = random_documents(200, 5);
  const RowFeeder feeder(folder_ / "spool", lines);
  const DatasetOptions options = options_of("start", 10);
  const auto rows = stream(options);
  rows->release_before(12);
  const Rows all = rows_of_file(lines, options);
  EXPECT_EQ(rows_of(*rows, 12), Rows(all.begin() + 120, all.begin() + 130));
  wait_for("spool/tokenized/start-14.tokens");
  for (const std::string& name : blocks())
    EXPECT_THAT(name, testing::AnyOf("start-0.tokens", "start-1.tokens", "start-12.tokens", "start-13.tokens",
                                     "start-14.tokens"));
}

TEST_F(SpooledRowsTest, RanksOfAStartShareTheBlocks) {
  const std::vector<std::string> lines = random_documents(90, 9);
  const RowFeeder feeder(folder_ / "spool", lines);
  const DatasetOptions options = options_of("start", 16);
  const auto first = stream(options);
  const auto second = stream(options);
  const Rows expected = rows_of_file(lines, options);
  std::vector<Rows> found(2);
  for (int64_t block = 0; block < 6; ++block) {
    // Both are asked, since either may be the one that makes the blocks.
    while (!first->find_block(block) || !second->find_block(block))
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    for (size_t rank = 0; rank < 2; ++rank) {
      const Rows more = rows_of(rank == 0 ? *first : *second, block);
      found[rank].insert(found[rank].end(), more.begin(), more.end());
    }
  }
  EXPECT_THAT(found, ElementsAre(expected, expected));
}

TEST_F(SpooledRowsTest, AnotherStartIsFedFromTheFirstRowOn) {
  const std::vector<std::string> lines = random_documents(120, 11);
  const RowFeeder feeder(folder_ / "spool", lines);
  const DatasetOptions options = options_of("first", 10);
  stream(options)->wait_for_block(4);
  folder_.write("spool/tokenized/.first-9.tokens.tmp-1-1", "of a process that was killed");
  folder_.write("spool/tokenized/first-8.tokens", "of a process that was killed");
  const auto rows = stream(options_of("second", 10));
  EXPECT_EQ(all_rows(*rows), rows_of_file(lines, options));
  for (const std::string& name : files_in("spool/tokenized")) EXPECT_THAT(name, Not(HasSubstr("first-")));
}

TEST_F(SpooledRowsTest, TheKeyIsOfTheSettings) {
  const auto key = [&](const std::string& spool, int64_t max_length) {
    DatasetOptions options = options_of("start", 10, spool);
    options.max_length = max_length;
    return stream(options)->key();
  };
  const RowFeeder one(folder_ / "one", random_documents(50, 1));
  const RowFeeder other(folder_ / "other", random_documents(40, 2), {.rows_per_file = 9});
  EXPECT_EQ(key("one", 32), key("other", 32));
  EXPECT_NE(key("one", 32), key("one", 31));
}

TEST_F(SpooledRowsTest, AGoneFeederEndsTheWait) {
  const pid_t gone = fork();
  if (gone == 0) ::_exit(0);
  ASSERT_EQ(::waitpid(gone, nullptr, 0), gone);
  create_folder(folder_ / "spool");
  folder_.write("spool/feeder", std::to_string(gone));
  DatasetOptions options = options_of("start", 10);
  const Error none = error_of([&] { stream(options); });
  EXPECT_EQ(none.code(), ExitCode::kNoInput);
  EXPECT_THAT(none.what(), HasSubstr("the process that feeds rows is gone, without 0.jsonl"));
  folder_.write("spool/0.jsonl", R"({"text": "one"})");
  const auto rows = stream(options);
  EXPECT_THAT(error_of([&] { all_rows(*rows); }).what(), HasSubstr("is gone, without 1.jsonl"));

  // Rows it has written are still used.
  folder_.write("spool/0.jsonl", R"({"text": "one"})");
  fs::remove_all(folder_ / "spool/tokenized");
  folder_.write("spool/end", "");
  EXPECT_THAT(all_rows(*stream(options)), SizeIs(1));
}

TEST_F(SpooledRowsTest, AFeederOnAnotherMachineIsWaitedFor) {
  create_folder(folder_ / "spool");
  folder_.write("spool/feeder", "1999999999 another-host");
  DatasetOptions options = options_of("start", 10);
  int num_asked = 0;
  options.while_waiting = [&] {
    if (++num_asked == 5) throw std::runtime_error("enough");
  };
  EXPECT_THROW(stream(options), std::runtime_error);
}

TEST_F(SpooledRowsTest, WhatCannotBeUsedIsRefused) {
  const DatasetOptions options = options_of("start", 10);
  EXPECT_EQ(error_of([&] { stream(options); }).code(), ExitCode::kNoInput) << "no folder";
  create_folder(folder_ / "spool");
  folder_.write("spool/end", "");
  EXPECT_THAT(error_of([&] { stream(options); }).what(), HasSubstr("the dataset is empty"));
  fs::remove(folder_ / "spool/end");
  std::vector<std::string> lines = random_documents(20, 1);
  lines[13] = R"({"text": 5})";
  const RowFeeder feeder(folder_ / "spool", lines, {.rows_per_file = 6});
  const auto rows = stream(options);
  EXPECT_THAT(error_of([&] { all_rows(*rows); }).what(),
              HasSubstr("spool/2.jsonl: line 2: column 'text': expected a string"));
}

}  // namespace
}  // namespace tessera
