#include "model/blocks/loss_head.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/isolated_device.h"
#include "support/model_test_support.h"
#include "support/reference_model.h"
#include "support/values_near.h"

namespace tessera {
namespace {

constexpr uint64_t kLossHeadSeed = 7;

// Loss and gradients of rows together, whose logits do not fit in one piece, and one by one, where they do.
void check_loss_in_pieces(int64_t vocab_size, const std::vector<int64_t>& lengths, DType dtype) {
  ModelConfig config = tiny_config();
  config.vocab_size = vocab_size;
  config.hidden_size = 4;
  config.num_hidden_layers = 1;
  const auto rows = random_rows(lengths, config.vocab_size, kLossHeadSeed);
  const PackedBatch packed = pack(rows);
  const LogitsPieces pieces = logits_pieces(packed.num_tokens(), vocab_size);
  ASSERT_TRUE(pieces.rows < packed.num_targets || pieces.columns < vocab_size) << "a single piece";
  const auto weights = random_weights(parameter_layout(config), 0.3f, kLossHeadSeed);
  TestModel together(config, dtype, weights);
  TestModel apart(config, dtype, weights);
  together.model().reserve(limits_of(packed));
  together.fill_gradients(std::nanf(""));
  double squares = 0;
  const LossSums expected =
      together.model().forward_backward(packed, 1.0f, 0.1f, {Update::kOverwrite, &squares});
  const double expected_squares = sum_of_squares(parameter_layout(config), together.gradients());
  EXPECT_NEAR(squares, expected_squares, 1e-12 * expected_squares);
  EXPECT_EQ(together.model().forward_loss(packed, 0.1f).loss_sum, expected.loss_sum);
  std::vector<LossSums> by_sequence(rows.size(), {1, 1});
  together.model().forward_loss(packed, 0.1f, by_sequence);
  apart.model().reserve(limits_of(packed));
  LossSums sums;
  for (size_t i = 0; i < rows.size(); ++i) {
    const PackedBatch one = pack({rows[i]});
    const LogitsPieces whole = logits_pieces(one.num_tokens(), vocab_size);
    ASSERT_TRUE(whole.rows == one.num_tokens() && whole.columns == vocab_size) << "several pieces";
    const LossSums of_one =
        apart.model().forward_backward(one, 1.0f, 0.1f, i == 0 ? Update::kOverwrite : Update::kAdd);
    sums.loss_sum += of_one.loss_sum;
    EXPECT_EQ(by_sequence[i].num_targets, of_one.num_targets);
    EXPECT_NEAR(by_sequence[i].loss_sum, of_one.loss_sum, 0x1.0p-18 * of_one.loss_sum) << "sequence " << i;
  }
  const double rounding = std::sqrt(static_cast<double>(packed.num_tokens())) * 0x1.0p-24;
  EXPECT_NEAR(sums.loss_sum, expected.loss_sum, rounding * expected.loss_sum);
  // In BF16, too, only the order of sums differs, but activation gradients are then rounded to 8 bits.
  const double bound = dtype == DType::kF32 ? rounding : 0x1.0p-8;
  const ParameterLayout layout = parameter_layout(config);
  for (const Parameter& parameter : layout.parameters()) {
    const auto of = [&](TestModel& test) {
      return std::span<const float>(test.gradients())
          .subspan(static_cast<size_t>(parameter.offset), static_cast<size_t>(parameter.num_elements));
    };
    expect_near(of(apart), of(together), bound * largest_of(of(together)), parameter.name);
  }
}

TEST(LossHead, LossInBlocksOfWholeRowsEqualsSeparateRuns) {
  const int64_t vocab_size = LogitsLimits::kHostBytes / 4 / kMinWholeRows;  // a block is kMinWholeRows rows
  ASSERT_EQ(logits_pieces(700, vocab_size).rows, kMinWholeRows);
  check_loss_in_pieces(vocab_size, {400, 250, 50}, DType::kF32);
}

TEST(LossHead, LossInChunksOfTheVocabularyEqualsSeparateRuns) {
  const int64_t vocab_size = LogitsLimits::kHostBytes / 4 / kMinWholeRows + 999;
  ASSERT_EQ(logits_pieces(700, vocab_size).rows, 700);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    check_loss_in_pieces(vocab_size, {400, 250, 50}, dtype);
  }
}

TEST(LossHead, LossInBlocksOfRowsAndChunksOfTheVocabularyEqualsSeparateRuns) {
  const int64_t vocab_size = LogitsLimits::kHostBytes / 4 / kMinWholeRows + 1;
  ASSERT_EQ(logits_pieces(2700, vocab_size).rows, kMaxBlockRows);
  check_loss_in_pieces(vocab_size, {500, 500, 500, 500, 500, 200}, DType::kF32);
}

void check_pieces(const LogitsLimits& limits) {
  for (const int64_t vocab_size : {1, 13, 8192, 32000, 32768, 32769, 50257, 128256, 151936, 262144}) {
    int64_t previous_elements = 0, previous_rows = 0;
    for (const int64_t num_tokens :
         {1, 63, 64, 100, 127, 128, 511, 512, 513, 1000, 2047, 2048, 2049, 50000}) {
      const LogitsPieces pieces = logits_pieces(num_tokens, vocab_size, limits);
      const std::string context = fmt::format("{} tokens, vocabulary {}", num_tokens, vocab_size);
      EXPECT_GE(pieces.rows, std::min(num_tokens, kMinWholeRows)) << context;
      EXPECT_LE(pieces.rows * std::min(pieces.columns, vocab_size), pieces.num_elements) << context;
      EXPECT_LE(pieces.num_elements, limits.bytes / 4) << context;
      // Fewer tokens never need more memory.
      EXPECT_GE(pieces.num_elements, previous_elements) << context;
      if (pieces.columns < vocab_size) {
        EXPECT_GE(pieces.rows, previous_rows) << context;
        previous_rows = pieces.rows;
      }
      previous_elements = pieces.num_elements;
    }
  }
}

TEST(LossHead, PiecesOfLogitsCoverTheVocabularyWithinTheirMemory) {
  check_pieces({});
  check_pieces(logits_limits(IsolatedDevice()));
}

TEST(LossHead, LogitsOnACardAreWholeRowsInMultiplesOfTiles) {
  const LogitsLimits limits = logits_limits(IsolatedDevice());
  const LogitsPieces pieces = logits_pieces(8192, 128'256, limits);
  EXPECT_EQ(pieces.rows, 2048);
  EXPECT_EQ(pieces.columns, 128'256);
  EXPECT_EQ(logits_pieces(100, 128'256, limits).rows, 100);
  EXPECT_EQ(logits_limits(host_device()).bytes, LogitsLimits::kHostBytes);
}

}  // namespace
}  // namespace tessera
