// Packed rows of documents of drawn lengths are those of pack_dataset() in TRL 1.16.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "data/cache/document_groups.h"
#include "data/cache/row_builder.h"
#include "support/drawn_lengths.h"

namespace tessera {
namespace {

using ::testing::ElementsAre;

// For every row: its length, its ids, the lengths of its sequences (with wrapped: its own). The ids of all
// documents are 0, 1, 2, ...
struct PackedRows {
  int64_t num_rows = 0;
  int64_t num_cut_tokens = 0;
  std::vector<int64_t> values;
};

PackedRows pack(Packing packing, int64_t max_length, const std::vector<int64_t>& lengths, bool has_labels) {
  PackedRows packed;
  DocumentCounts counts;
  RowBuilder builder(
      packing, max_length, has_labels,
      [&](auto ids, auto labels, auto sequence_lengths) {
        ++packed.num_rows;
        packed.values.push_back(std::ssize(ids));
        packed.values.insert(packed.values.end(), ids.begin(), ids.end());
        EXPECT_TRUE(!has_labels || std::ranges::equal(ids, labels, {}, std::negate()));
        if (sequence_lengths.empty()) packed.values.push_back(std::ssize(ids));
        packed.values.insert(packed.values.end(), sequence_lengths.begin(), sequence_lengths.end());
      },
      &counts);
  int32_t next = 0;
  for (const int64_t length : lengths) {
    std::vector<int32_t> ids, labels;
    for (int64_t i = 0; i < length; ++i) {
      ids.push_back(next++);
      labels.push_back(-ids.back());
    }
    builder.add_document(ids, has_labels ? std::span<const int32_t>(labels) : std::span<const int32_t>());
  }
  builder.finish();
  packed.num_cut_tokens = counts.num_cut_tokens;
  return packed;
}

// for st in strategies: p = pack_dataset(Dataset.from_dict({"input_ids": docs, "labels": docs}), max_length,
// st)
struct StoredRows {
  int64_t seed, num_documents, max_length, low, high;
  const char* strategy;
  int64_t num_rows;
  uint64_t hash;
};
constexpr StoredRows kStoredRows[] = {
    {1, 14, 10, 1, 14, "bfd", 12, 7955826401454329175u},
    {1, 14, 10, 1, 14, "bfd_split", 13, 5266466529431092633u},
    {1, 14, 10, 1, 14, "wrapped", 13, 1332380512232475111u},
    {2, 9, 6, 1, 20, "bfd", 9, 15103658865877891983u},
    {2, 9, 6, 1, 20, "bfd_split", 21, 10544423394004274915u},
    {2, 9, 6, 1, 20, "wrapped", 21, 12175482786279443687u},
    {3, 700, 24, 1, 40, "bfd", 512, 11175497310471537563u},
    {3, 700, 24, 1, 40, "bfd_split", 599, 6400553509213853939u},
    {3, 700, 24, 1, 40, "wrapped", 599, 37163612448651119u},
    {4, 2500, 64, 1, 70, "bfd", 1365, 3495657498703057818u},
    {4, 2500, 64, 1, 70, "bfd_split", 1370, 9857998410203813901u},
    {4, 2500, 64, 1, 70, "wrapped", 1364, 9391381707577073714u},
    {5, 1000, 128, 1, 60, "bfd", 239, 5859486375004622589u},
    {5, 1000, 128, 1, 60, "bfd_split", 239, 5859486375004622589u},
    {5, 1000, 128, 1, 60, "wrapped", 239, 5118305154409294700u},
    {6, 1001, 33, 20, 33, "bfd", 1001, 12081121628195054986u},
    {6, 1001, 33, 20, 33, "bfd_split", 1001, 12081121628195054986u},
    {6, 1001, 33, 20, 33, "wrapped", 802, 7094083157663168124u},
};

TEST(PackingStrategies, RowsAreThoseOfTrl) {
  for (const StoredRows& stored : kStoredRows) {
    const std::string strategy = stored.strategy;
    const Packing packing = strategy == "bfd"         ? Packing::kBestFit
                            : strategy == "bfd_split" ? Packing::kBestFitSplit
                                                      : Packing::kWrapped;
    const std::vector<int64_t> lengths =
        drawn_lengths(stored.seed, stored.num_documents, stored.low, stored.high);
    for (const bool has_labels : {false, true}) {
      const PackedRows packed = pack(packing, stored.max_length, lengths, has_labels);
      EXPECT_EQ(packed.num_rows, stored.num_rows) << strategy << " seed " << stored.seed;
      EXPECT_EQ(hash_of(packed.values), stored.hash) << strategy << " seed " << stored.seed;
    }
  }
}

// greedy_knapsack([6, 2, 3, 3, 5, 1, 2], 7) and length2indexes[length].pop() of LLaMA-Factory.
TEST(PackingStrategies, TheKnapsackIsLlamaFactorys) {
  EXPECT_THAT(greedy_knapsack(std::vector<int64_t>{6, 2, 3, 3, 5, 1, 2}, 7),
              ElementsAre(ElementsAre(0, 5), ElementsAre(4, 6), ElementsAre(3, 2), ElementsAre(1)));
  const PackedRows packed = pack(Packing::kKnapsack, 8, {6, 8, 2, 7}, true);
  EXPECT_THAT(packed.values, ElementsAre(7, 16, 17, 18, 19, 20, 21, 22, 7, 7, 6, 7, 8, 9, 10, 11, 12, 7, 6, 0,
                                         1, 2, 3, 4, 5, 6, 2, 14, 15, 2));
  EXPECT_EQ(packed.num_cut_tokens, 1);  // its rows have a token less
}

TEST(PackingStrategies, OnlyBestFitWithoutPiecesDropsTokensAndCountsThem) {
  EXPECT_EQ(pack(Packing::kBestFit, 4, {6, 2, 9}, false).num_cut_tokens, 7);
  EXPECT_EQ(pack(Packing::kBestFitSplit, 4, {6, 2, 9}, false).num_cut_tokens, 0);
  EXPECT_EQ(pack(Packing::kWrapped, 4, {6, 2, 9}, false).num_cut_tokens, 0);
}

TEST(PackingStrategies, TheFullestRowWithRoomTakesADocument) {
  EXPECT_THAT(best_fit_decreasing(std::vector<int64_t>{5, 2, 3, 1}, 5),
              ElementsAre(ElementsAre(0), ElementsAre(2, 1), ElementsAre(3)));
  EXPECT_THAT(best_fit_decreasing(std::vector<int64_t>{3, 3, 2, 1}, 5),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  EXPECT_TRUE(best_fit_decreasing({}, 5).empty());
}

}  // namespace
}  // namespace tessera
