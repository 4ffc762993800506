#include "data/cache/token_cache.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <limits>

#include "base/error.h"
#include "expect_error.h"
#include "tensor/packed_batch.h"
#include "test_folder.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Ids = std::vector<int32_t>;

constexpr Hash128 kKey = {5, 6};

void write_cache(const std::filesystem::path& path, int64_t vocab_size, bool with_labels) {
  TokenCacheWriter writer(path, kKey, vocab_size, with_labels);
  const auto last = static_cast<int32_t>(vocab_size - 1);
  const Ids first = {1, last, 0};
  const Ids second = {7, 8, 9, 10};
  writer.append_row(first, with_labels ? Ids{kIgnoredLabel, last, kIgnoredLabel} : Ids{}, {});
  writer.append_row(second, with_labels ? second : Ids{}, Ids{1, 3});
  writer.commit({.num_documents = 2,
                 .num_empty_documents = 3,
                 .num_invalid_documents = 4,
                 .num_bad_rows = 7,
                 .num_cut_documents = 5,
                 .num_cut_tokens = 6});
}

std::string bytes_of(const std::filesystem::path& path) { return read_text_file(path); }

// Without fsync: the tests below write hundreds of files.
void write_bytes(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
}

TEST(TokenCache, GivesRowsBackForEveryIdWidth) {
  const TestFolder folder;
  ThreadPool pool(2);
  for (const int64_t vocab_size : {int64_t{12}, int64_t{65536}, int64_t{65537}, int64_t{1} << 30}) {
    write_cache(folder / "c", vocab_size, false);
    const TokenCache cache = TokenCache::open(folder / "c", kKey, &pool);
    Ids ids, labels, lengths;
    cache.read_row(0, &ids, &labels, &lengths);
    EXPECT_THAT(ids, ElementsAre(1, vocab_size - 1, 0)) << vocab_size;
    EXPECT_THAT(labels, IsEmpty());
    EXPECT_THAT(lengths, ElementsAre(3));
    cache.read_row(1, &ids, &labels, &lengths);
    EXPECT_THAT(ids, ElementsAre(7, 8, 9, 10)) << vocab_size;
    EXPECT_THAT(lengths, ElementsAre(1, 3));
    EXPECT_EQ(cache.trailer().num_tokens, 7);
    EXPECT_EQ(cache.trailer().num_targets, 2 + 2);
    EXPECT_EQ(cache.trailer().max_row_length, 4);
    EXPECT_EQ(cache.trailer().counts.num_documents, 2);
    EXPECT_EQ(cache.trailer().counts.num_cut_tokens, 6);
    EXPECT_EQ(cache.trailer().counts.num_bad_rows, 7);
    EXPECT_EQ(cache.entry(0).num_targets, 2u);
  }
}

TEST(TokenCache, KeepsLabels) {
  const TestFolder folder;
  write_cache(folder / "c", 12, true);
  const TokenCache cache = TokenCache::open(folder / "c", kKey, nullptr);
  Ids ids, labels, lengths;
  cache.read_row(0, &ids, &labels, &lengths);
  EXPECT_THAT(labels, ElementsAre(kIgnoredLabel, 11, kIgnoredLabel));
  cache.read_row(1, &ids, &labels, &lengths);
  EXPECT_THAT(labels, ElementsAre(7, 8, 9, 10));
  EXPECT_EQ(cache.trailer().num_targets, 1 + 2);
}

TEST(TokenCache, CountsTargets) {
  EXPECT_EQ(count_targets(5, {}, {}), 4);
  EXPECT_EQ(count_targets(5, {}, Ids{2, 1, 2}), 2);
  const Ids labels = {1, -100, 3, -100, 5};
  EXPECT_EQ(count_targets(5, labels, {}), 2);
  EXPECT_EQ(count_targets(5, labels, Ids{4, 1}), 1);
  EXPECT_EQ(count_targets(5, labels, Ids{2, 3}), 1);
  EXPECT_EQ(count_targets(1, Ids{-100}, {}), 0);
}

TEST(TokenCache, EveryChangedByteIsFound) {
  const TestFolder folder;
  ThreadPool pool(1);
  for (const bool with_labels : {false, true}) {
    write_cache(folder / "c", 12, with_labels);
    const std::string good = bytes_of(folder / "c");
    for (size_t at = 0; at < good.size(); ++at) {
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 0x10);
      write_bytes(folder / "bad", bad);
      const Error error = error_of([&] { TokenCache::open(folder / "bad", kKey, &pool); });
      EXPECT_EQ(error.code(), ExitCode::kBadData) << "byte " << at;
      EXPECT_THAT(error.what(), HasSubstr("bad: damaged token cache: ")) << "byte " << at;
    }
  }
}

TEST(TokenCache, EveryTruncationIsFound) {
  const TestFolder folder;
  write_cache(folder / "c", 12, false);
  const std::string good = bytes_of(folder / "c");
  for (size_t size = 0; size < good.size(); ++size) {
    write_bytes(folder / "bad", good.substr(0, size));
    const Error error = error_of([&] { TokenCache::open(folder / "bad", kKey, nullptr); });
    EXPECT_EQ(error.code(), ExitCode::kBadData) << size << " bytes";
    EXPECT_THAT(error.what(), HasSubstr("damaged token cache")) << size << " bytes";
  }
  write_bytes(folder / "bad", good + "x");
  EXPECT_EQ(error_of([&] { TokenCache::open(folder / "bad", kKey, nullptr); }).code(), ExitCode::kBadData);
}

TEST(TokenCache, AnotherKeyIsRefused) {
  const TestFolder folder;
  write_cache(folder / "c", 12, false);
  EXPECT_THAT(error_of([&] {
                TokenCache::open(folder / "c", {5, 7}, nullptr);
              }).what(),
              HasSubstr("key: expected"));
}

// The trailer of a good file with one row of 3 ids, changed and given a valid checksum again.
std::string message_of_changed_trailer(const std::function<void(CacheTrailer*)>& change) {
  CacheTrailer trailer;
  trailer.vocab_size = 10;
  trailer.records_bytes = 6;
  trailer.num_rows = 1;
  trailer.num_tokens = 3;
  trailer.num_targets = 2;
  trailer.max_row_length = 3;
  change(&trailer);
  std::vector<std::byte> preamble(static_cast<size_t>(kCachePreambleBytes));
  std::memcpy(preamble.data(), "TSRAROWS\x03", 9);
  const int64_t file_bytes = kCachePreambleBytes + 6 + 16 + kCacheTrailerBytes;
  try {
    parse_cache_trailer(preamble, encode_cache_trailer(trailer), file_bytes, "c");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    return error.what();
  }
  return "";
}

TEST(CacheTrailer, RefusesEveryValueOutOfRange) {
  constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();
  EXPECT_EQ(message_of_changed_trailer([](CacheTrailer*) {}), "");
  const auto refuses = [](const char* text, const std::function<void(CacheTrailer*)>& change) {
    EXPECT_THAT(message_of_changed_trailer(change), HasSubstr(text));
  };
  refuses("version", [](CacheTrailer* t) { t->version = 1; });
  refuses("vocab_size", [](CacheTrailer* t) { t->vocab_size = 0; });
  refuses("vocab_size", [](CacheTrailer* t) { t->vocab_size = -1; });
  refuses("vocab_size", [](CacheTrailer* t) { t->vocab_size = int64_t{1} << 31; });
  refuses("has_labels", [](CacheTrailer* t) { t->has_labels = 4; });
  refuses("has_labels", [](CacheTrailer* t) { t->has_labels = -1; });
  refuses("num_rows", [](CacheTrailer* t) { t->num_rows = 0; });
  refuses("num_rows", [](CacheTrailer* t) { t->num_rows = -1; });
  refuses("between preamble and trailer", [](CacheTrailer* t) { t->num_rows = 2; });
  refuses("between preamble and trailer", [](CacheTrailer* t) { t->num_rows = kHuge; });
  refuses("between preamble and trailer", [](CacheTrailer* t) { t->num_rows = int64_t{1} << 60; });
  refuses("between preamble and trailer", [](CacheTrailer* t) { t->records_bytes = kHuge; });
  refuses("between preamble and trailer", [](CacheTrailer* t) { t->records_bytes = 5; });
  refuses("records_bytes", [](CacheTrailer* t) { t->records_bytes = -1; });
  refuses("num_tokens", [](CacheTrailer* t) { t->num_tokens = 4; });
  refuses("num_tokens", [](CacheTrailer* t) { t->num_tokens = kHuge; });
  refuses("num_tokens", [](CacheTrailer* t) { t->num_tokens = -1; });
  refuses("num_tokens", [](CacheTrailer* t) { t->has_labels = 1; });
  refuses("num_targets", [](CacheTrailer* t) { t->num_targets = -1; });
  refuses("max_row_length", [](CacheTrailer* t) { t->max_row_length = 0; });
  refuses("max_row_length", [](CacheTrailer* t) { t->max_row_length = int64_t{1} << 31; });
  refuses("num_cut_tokens", [](CacheTrailer* t) { t->counts.num_cut_tokens = -1; });
}

TEST(CacheIndex, RefusesRowsThatDoNotFit) {
  CacheTrailer trailer;
  trailer.vocab_size = 10;
  trailer.records_bytes = 6 + 8 + 8;  // 3 ids; 4 ids in two sequences
  trailer.num_rows = 2;
  trailer.num_tokens = 7;
  trailer.num_targets = 4;
  trailer.max_row_length = 4;
  const std::vector<CacheIndexEntry> good = {{16, 3, 2}, {22, 4, 2}};
  check_cache_index(trailer, good, "c");
  const auto message = [&](size_t row, const CacheIndexEntry& entry) {
    std::vector<CacheIndexEntry> bad = good;
    bad[row] = entry;
    return std::string(error_of([&] { check_cache_index(trailer, bad, "c"); }).what());
  };
  constexpr uint64_t kHuge = std::numeric_limits<uint64_t>::max();
  EXPECT_THAT(message(0, {15, 3, 2}), HasSubstr("row 0: offset 15"));
  EXPECT_THAT(message(0, {kHuge, 3, 2}), HasSubstr("row 0: offset"));
  EXPECT_THAT(message(1, {kHuge, 4, 2}), HasSubstr("row 0"));
  EXPECT_THAT(message(1, {15, 4, 2}), HasSubstr("row 0"));
  EXPECT_THAT(message(1, {23, 4, 2}), HasSubstr("row 0: 3 tokens cannot take 7 bytes"));
  EXPECT_THAT(message(0, {16, 0, 0}), HasSubstr("row 0: 0 tokens cannot take 6 bytes"));
  EXPECT_THAT(message(0, {16, 4, 2}), HasSubstr("row 0: 4 tokens cannot take 6 bytes"));
  EXPECT_THAT(message(0, {16, 1, 0}),
              HasSubstr("row 0: 1 token cannot take 6 bytes"));  // one sequence length
  EXPECT_THAT(message(0, {16, std::numeric_limits<uint32_t>::max(), 2}), HasSubstr("row 0"));
  EXPECT_THAT(message(0, {16, 3, 3}), HasSubstr("row 0: 3 targets in 3 tokens"));
  EXPECT_THAT(message(1, {22, 2, 1}), HasSubstr("row 1: 2 tokens cannot take 16 bytes"));
  EXPECT_THAT(message(0, {16, 3, 1}), HasSubstr("do not add up"));
}

TEST(TokenCache, IdsOutOfRangeAreRefusedWhenTheFileChangesUnderARun) {
  const TestFolder folder;
  write_cache(folder / "c", 12, false);
  const TokenCache cache = TokenCache::open(folder / "c", kKey, nullptr);
  {
    std::FILE* file = std::fopen((folder / "c").c_str(), "r+b");
    ASSERT_NE(file, nullptr);
    std::fseek(file, kCachePreambleBytes, SEEK_SET);
    std::fputc(200, file);
    std::fclose(file);
  }
  Ids ids, labels, lengths;
  const Error error = error_of([&] { cache.read_row(0, &ids, &labels, &lengths); });
  EXPECT_EQ(error.code(), ExitCode::kBadData);
  EXPECT_THAT(error.what(), HasSubstr("row 0: the token cache was changed while in use"));
}

TEST(TokenCache, RowsCrossTheChunksOfTheChecksum) {
  const TestFolder folder;
  ThreadPool pool(3);
  const int64_t row_length = kHashChunkBytes / 4 + 13;
  {
    TokenCacheWriter writer(folder / "c", kKey, 100'000, false);
    for (int32_t row = 0; row < 5; ++row)
      writer.append_row(Ids(static_cast<size_t>(row_length), 70'000 + row), {}, {});
    writer.commit({});
  }
  const TokenCache cache = TokenCache::open(folder / "c", kKey, &pool);
  Ids ids, labels, lengths;
  for (int32_t row = 0; row < 5; ++row) {
    cache.read_row(row, &ids, &labels, &lengths);
    EXPECT_EQ(ids, Ids(static_cast<size_t>(row_length), 70'000 + row)) << row;
  }
}

}  // namespace
}  // namespace tessera
