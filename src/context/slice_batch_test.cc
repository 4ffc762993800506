#include "context/slice_batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/divide_up.h"
#include "base/error.h"

namespace tessera {
namespace {

using testing::ElementsAre;

// Sequences of these lengths. Token t is 100 + t and predicts 200 + t, unless it is the last of its sequence.
PackedBatch batch_of_lengths(const std::vector<int32_t>& lengths) {
  PackedBatch batch;
  batch.cu_seqlens = {0};
  for (const int32_t length : lengths) {
    for (int32_t t = 0; t < length; ++t) {
      const auto number = static_cast<int32_t>(batch.input_ids.size());
      batch.input_ids.push_back(100 + number);
      batch.positions.push_back(t);
      batch.targets.push_back(t + 1 < length ? 200 + number : kIgnoredLabel);
    }
    batch.num_targets += length - 1;
    batch.cu_seqlens.push_back(static_cast<int32_t>(batch.input_ids.size()));
  }
  return batch;
}

TEST(SliceBatch, DealsTokensInTurn) {
  PackedBatch slice;
  std::vector<int32_t> all;
  slice_batch(batch_of_lengths({4, 1, 3}), 2, 1, &slice, &all);
  EXPECT_THAT(slice.input_ids, ElementsAre(101, 103, 105, 107));
  EXPECT_THAT(slice.positions, ElementsAre(1, 3, 0, 2));
  EXPECT_THAT(slice.targets, ElementsAre(201, kIgnoredLabel, 205, kIgnoredLabel));
  EXPECT_THAT(slice.cu_seqlens, ElementsAre(0, 2, 2, 4));
  EXPECT_THAT(all, ElementsAre(0, 4, 5, 8));
  EXPECT_EQ(slice.num_targets, 2);
  EXPECT_TRUE(slice.is_slice);
}

TEST(SliceBatch, HasTheWholeBatchInTheSlicesOfAllMembers) {
  for (const std::vector<int32_t>& lengths :
       {std::vector<int32_t>{1}, {2}, {7, 1, 1, 30}, {64, 63}, {5, 5, 5, 5, 5}}) {
    const PackedBatch whole = batch_of_lengths(lengths);
    for (int64_t size = 1; size <= 8; ++size) {
      SCOPED_TRACE(fmt::format("{} tokens, {} members", whole.num_tokens(), size));
      const int64_t own_tokens = tokens_of_member(whole.num_tokens(), size);
      int64_t num_targets = 0;
      std::vector<int64_t> counts;  // tokens before each bound, of all members
      for (int64_t member = 0; member < size; ++member) {
        PackedBatch slice;
        std::vector<int32_t> all;
        slice_batch(whole, size, member, &slice, &all);
        ASSERT_EQ(slice.num_tokens(), own_tokens);
        num_targets += slice.num_targets;
        for (int64_t i = 0; i < own_tokens; ++i) {
          const auto t = static_cast<size_t>(i * size + member), own = static_cast<size_t>(i);
          if (static_cast<int64_t>(t) < whole.num_tokens()) {
            EXPECT_EQ(slice.input_ids[own], whole.input_ids[t]);
            EXPECT_EQ(slice.positions[own], whole.positions[t]);
            EXPECT_EQ(slice.targets[own], whole.targets[t]);
          } else {
            EXPECT_EQ(slice.targets[own], kIgnoredLabel);
          }
        }
        EXPECT_EQ(all.back(), size * own_tokens);
        EXPECT_TRUE(std::equal(whole.cu_seqlens.begin(), whole.cu_seqlens.end(), all.begin()));
        ASSERT_EQ(slice.cu_seqlens.size(), all.size());
        EXPECT_EQ(slice.cu_seqlens.back(), own_tokens);
        counts.resize(all.size());
        for (size_t i = 0; i < all.size(); ++i) counts[i] += slice.cu_seqlens[i];
        if (member + 1 == size) {
          EXPECT_THAT(counts, testing::ElementsAreArray(all));
        }
      }
      EXPECT_EQ(num_targets, whole.num_targets);
    }
  }
}

}  // namespace
}  // namespace tessera
