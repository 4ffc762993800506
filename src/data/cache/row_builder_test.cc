#include "data/cache/row_builder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "data/cache/token_cache.h"
#include "tensor/packed_batch.h"
#include "test_folder.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;
using Ids = std::vector<int32_t>;

constexpr int32_t kEos = 0;

struct BuiltRow {
  Ids ids;
  Ids sequence_lengths;
};

struct Built {
  std::vector<BuiltRow> rows;
  DocumentCounts counts;
};

Built build(Packing packing, int64_t max_length, const std::vector<Ids>& documents) {
  const TestFolder folder;
  Built built;
  {
    TokenCacheWriter writer(folder / "c", {1, 2}, 100, false);
    RowBuilder builder(
        packing, max_length, /*has_labels=*/false,
        [&](auto ids, auto labels, auto lengths) { writer.append_row(ids, labels, lengths); }, &built.counts);
    for (const Ids& ids : documents) builder.add_document(ids);
    builder.finish();
    writer.commit(built.counts);
  }
  const TokenCache cache = TokenCache::open(folder / "c", {1, 2}, nullptr);
  for (int64_t row = 0; row < cache.trailer().num_rows; ++row) {
    Ids labels;
    built.rows.emplace_back();
    cache.read_row(row, &built.rows.back().ids, &labels, &built.rows.back().sequence_lengths);
    EXPECT_TRUE(labels.empty());
  }
  return built;
}

TEST(RowBuilder, WithoutPackingEveryDocumentIsARowCutToMaxLength) {
  const Built built = build(Packing::kNone, 3, {{1, 2}, {3, 4, 5, 6, 7}, {8}, {9, 10, 11}});
  ASSERT_EQ(built.rows.size(), 4u);
  EXPECT_THAT(built.rows[0].ids, ElementsAre(1, 2));
  EXPECT_THAT(built.rows[1].ids, ElementsAre(3, 4, 5));
  EXPECT_THAT(built.rows[2].ids, ElementsAre(8));
  EXPECT_THAT(built.rows[3].ids, ElementsAre(9, 10, 11));
  for (const BuiltRow& row : built.rows)
    EXPECT_THAT(row.sequence_lengths, ElementsAre(static_cast<int32_t>(row.ids.size())));
  EXPECT_EQ(built.counts.num_documents, 4);
  EXPECT_EQ(built.counts.num_cut_documents, 1);
  EXPECT_EQ(built.counts.num_cut_tokens, 2);
}

TEST(RowBuilder, DropsRowsThatAreLeftWithoutALabel) {
  constexpr int32_t kNone = kIgnoredLabel;
  std::vector<Ids> rows;
  DocumentCounts counts;
  const auto add = [&](Packing packing, const Ids& labels, bool keeps_masked) {
    rows.clear();
    RowBuilder builder(
        packing, 3, /*has_labels=*/true,
        [&](auto ids, auto, auto) { rows.emplace_back(ids.begin(), ids.end()); }, &counts);
    builder.add_document({{1, 2, 3, 4, 5}}, labels, keeps_masked);
    builder.add_document({{6, 7}}, {{kNone, kNone}}, keeps_masked);
    builder.finish();
  };
  add(Packing::kNone, {kNone, kNone, 3, 4, 5}, false);
  EXPECT_THAT(rows, ElementsAre(Ids{1, 2, 3}));
  EXPECT_EQ(counts.num_masked_rows, 1);
  EXPECT_EQ(counts.num_documents, 1);
  add(Packing::kNone, {1, kNone, kNone, 4, 5}, false);
  EXPECT_THAT(rows, ElementsAre(Ids{1, 2, 3})) << "a label, though never a target: TRL keeps the row";
  counts = {};
  add(Packing::kNone, {kNone, kNone, kNone, 4, 5}, true);
  EXPECT_THAT(rows, ElementsAre(Ids{6, 7})) << "only what is cut";
  EXPECT_EQ(counts.num_masked_rows, 1);
  add(Packing::kIsolated, {kNone, kNone, kNone, 4, 5}, false);
  EXPECT_THAT(rows, ElementsAre(Ids{1, 2, 3}, Ids{4, 5, 6})) << "packing drops none";
}

TEST(RowBuilder, PackingJoinsDocumentsAndCutsThem) {
  const std::vector<Ids> documents = {{1, 2, kEos}, {3, 4, 5, 6, 7, kEos}, {8, kEos}};
  const Built isolated = build(Packing::kIsolated, 4, documents);
  ASSERT_EQ(isolated.rows.size(), 3u);
  EXPECT_THAT(isolated.rows[0].ids, ElementsAre(1, 2, kEos, 3));
  EXPECT_THAT(isolated.rows[0].sequence_lengths, ElementsAre(3, 1));
  EXPECT_THAT(isolated.rows[1].ids, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(isolated.rows[1].sequence_lengths, ElementsAre(4));
  EXPECT_THAT(isolated.rows[2].ids, ElementsAre(kEos, 8, kEos));
  EXPECT_THAT(isolated.rows[2].sequence_lengths, ElementsAre(1, 2));
  const Built joined = build(Packing::kJoined, 4, documents);
  ASSERT_EQ(joined.rows.size(), 3u);
  for (size_t row = 0; row < 3; ++row) {
    EXPECT_EQ(joined.rows[row].ids, isolated.rows[row].ids) << "row " << row;
    EXPECT_THAT(joined.rows[row].sequence_lengths,
                ElementsAre(static_cast<int32_t>(joined.rows[row].ids.size())));
  }
  EXPECT_EQ(joined.counts.num_cut_documents, 0);
}

TEST(RowBuilder, KeepsTheLastPieceOnlyWithATarget) {
  // A row of 4, and one token that has no target.
  EXPECT_EQ(build(Packing::kJoined, 4, {{1, 2, 3, 4, kEos}}).rows.size(), 1u);
  EXPECT_EQ(build(Packing::kJoined, 3, {{1, 2, 3, 4, kEos}}).rows.size(), 2u);
  // Two tokens remain, but each is alone in its document.
  EXPECT_EQ(build(Packing::kIsolated, 4, {{1, 2, 3, 4, kEos}, {kEos}}).rows.size(), 1u);
  EXPECT_EQ(build(Packing::kJoined, 4, {{1, 2, 3, 4, kEos}, {kEos}}).rows.size(), 2u);
  EXPECT_EQ(build(Packing::kIsolated, 4, {{1, 2, 3, kEos}}).rows.size(), 1u);
}

TEST(RowBuilder, PackedRowsAreTheStreamCutEveryMaxLengthTokens) {
  constexpr uint32_t kSeed = 11;
  std::mt19937 random(kSeed);
  std::vector<Ids> documents;
  Ids stream;
  Ids document_of;  // of every token of the stream
  for (int32_t d = 0; d < 300; ++d) {
    Ids ids(1 + random() % 40);
    for (int32_t& id : ids) id = static_cast<int32_t>(1 + random() % 99);
    ids.push_back(kEos);
    documents.push_back(ids);
    stream.insert(stream.end(), ids.begin(), ids.end());
    document_of.resize(stream.size(), d);
  }
  for (const size_t length : {2, 3, 16, 41, 1000, 100000}) {
    const Built built = build(Packing::kIsolated, static_cast<int64_t>(length), documents);
    const size_t rest = stream.size() % length;
    ASSERT_EQ(built.rows.size(), stream.size() / length + (rest >= 2 ? 1 : 0)) << "max_length " << length;
    for (size_t row = 0; row < built.rows.size(); ++row) {
      const auto begin = static_cast<std::ptrdiff_t>(row * length);
      const auto end = static_cast<std::ptrdiff_t>(std::min(stream.size(), (row + 1) * length));
      ASSERT_EQ(built.rows[row].ids, Ids(stream.begin() + begin, stream.begin() + end))
          << "max_length " << length << " row " << row << " seed " << kSeed;
      Ids expected_lengths;
      for (std::ptrdiff_t i = begin; i < end; ++i) {
        if (i == begin || document_of[static_cast<size_t>(i)] != document_of[static_cast<size_t>(i - 1)])
          expected_lengths.push_back(0);
        ++expected_lengths.back();
      }
      ASSERT_EQ(built.rows[row].sequence_lengths, expected_lengths)
          << "max_length " << length << " row " << row << " seed " << kSeed;
    }
  }
}

}  // namespace
}  // namespace tessera
