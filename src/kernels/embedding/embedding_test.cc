#include "kernels/embedding/embedding.h"

#include <gtest/gtest.h>

#include "support/kernel_test_util.h"

namespace tessera {
namespace {

constexpr int64_t kVocabSize = 11;

// Row 3 appears often, some rows never.
std::vector<int32_t> some_ids(int64_t count) {
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < count; ++t) ids.push_back(static_cast<int32_t>(t % 3 == 0 ? 3 : t * 7 % 9));
  return ids;
}

TEST(Embedding, CopiesRowsBitForBit) {
  ThreadPool pool(3);
  for (const DType dtype : kActivationTypes) {
    for (const int64_t D : {1, 3, 16, 129, 300}) {
      for (const int64_t T : {0, 1, 63, 64, 65, 200}) {
        GuardedTensor table(dtype, {kVocabSize, D}), x(dtype, {T, D});
        table.fill_normal(1);
        table.set(3 * D, NAN);
        const std::vector<int32_t> ids = some_ids(T);
        embedding(ids, table.view(), x.view(), pool);
        EXPECT_TRUE(x.guards_intact());
        const std::string table_bits = table.bits(), x_bits = x.bits();
        const auto row_bytes = static_cast<size_t>(D * dtype_bytes(dtype));
        for (size_t t = 0; t < ids.size(); ++t) {
          ASSERT_EQ(x_bits.substr(t * row_bytes, row_bytes),
                    table_bits.substr(static_cast<size_t>(ids[t]) * row_bytes, row_bytes))
              << dtype_name(dtype) << " D " << D << " t " << t;
        }
      }
    }
  }
}

TEST(GatherRows, MovesRowsToTheBeginningAndBack) {
  constexpr int64_t D = 5;
  const std::vector<std::vector<int32_t>> selections = {{},
                                                        {0},
                                                        {6},
                                                        {0, 1, 2},
                                                        {2, 4},
                                                        {0, 2, 3, 6},
                                                        {4, 5, 6},
                                                        {1, 2, 3, 4, 5, 6},
                                                        {3},
                                                        {0, 1, 5},
                                                        {0, 1, 2, 3, 4, 5, 6}};
  for (const DType dtype : kActivationTypes) {
    for (const std::vector<int32_t>& rows : selections) {
      GuardedTensor x(dtype, {7, D});
      x.fill_normal(1);
      x.set(6 * D, NAN);
      const std::string before = x.bits();
      const auto row_bytes = static_cast<size_t>(D * dtype_bytes(dtype));
      gather_rows(rows, x.view());
      for (size_t i = 0; i < rows.size(); ++i) {
        EXPECT_EQ(x.bits().substr(i * row_bytes, row_bytes),
                  before.substr(static_cast<size_t>(rows[i]) * row_bytes, row_bytes))
            << rows[i];
      }
      scatter_rows(rows, x.view());
      EXPECT_TRUE(x.guards_intact());
      std::string expected(before.size(), '\0');
      for (const int32_t row : rows) {
        const size_t at = static_cast<size_t>(row) * row_bytes;
        expected.replace(at, row_bytes, before.substr(at, row_bytes));
      }
      EXPECT_EQ(x.bits(), expected) << dtype_name(dtype) << ", " << rows.size() << " rows";
    }
  }
}

// The order of the sums is part of the contract, so the result is known bit for bit.
TEST(EmbeddingBackward, AddsInTheOrderOfTokens) {
  ThreadPool pool(3);
  for (const DType dtype : kActivationTypes) {
    for (const int64_t D : {1, 3, 127, 128, 129, 300}) {
      for (const int64_t T : {0, 1, 2, 200}) {
        GuardedTensor dx(dtype, {T, D}), dtable(DType::kF32, {kVocabSize, D});
        dx.fill_normal(1);
        dtable.fill_normal(2);
        GuardedTensor expected = dtable;
        const std::vector<int32_t> ids = some_ids(T);
        for (int64_t t = 0; t < T; ++t) {
          for (int64_t d = 0; d < D; ++d) {
            const int64_t at = ids[static_cast<size_t>(t)] * D + d;
            expected.set(at, static_cast<float>(expected[at]) + static_cast<float>(dx[t * D + d]));
          }
        }
        embedding_backward(ids, dx.view(), kNoPaddingId, dtable.view(), pool);
        EXPECT_TRUE(dtable.guards_intact());
        EXPECT_TRUE(dtable.bits() == expected.bits()) << dtype_name(dtype) << " D " << D << " T " << T;
      }
    }
  }
}

TEST(EmbeddingBackward, LeavesTheRowOfThePaddingTokenAlone) {
  ThreadPool pool(2);
  constexpr int64_t D = 5;
  GuardedTensor dx(DType::kF32, {4, D}), dtable(DType::kF32, {kVocabSize, D});
  dx.fill(1);
  dtable.fill(2);
  embedding_backward(std::vector<int32_t>{3, 7, 3, 1}, dx.view(), /*padding_id=*/3, dtable.view(), pool);
  for (int64_t d = 0; d < D; ++d) {
    EXPECT_EQ(static_cast<float>(dtable[3 * D + d]), 2);
    EXPECT_EQ(static_cast<float>(dtable[7 * D + d]), 3);
    EXPECT_EQ(static_cast<float>(dtable[1 * D + d]), 3);
  }
}

TEST(EmbeddingBackward, DoesNotDependOnTheNumberOfThreads) {
  const auto run = [](ThreadPool& pool) {
    GuardedTensor dx(DType::kBF16, {500, 700});
    dx.fill_normal(1);
    std::vector<GuardedTensor> outputs;
    outputs.emplace_back(DType::kF32, Shape{kVocabSize, 700}).fill(1);
    embedding_backward(some_ids(500), dx.view(), kNoPaddingId, outputs[0].view(), pool);
    return outputs;
  };
  expect_thread_independent(run, "embedding_backward");
}

TEST(Embedding, WrongShapesAreBugs) {
  ThreadPool pool(1);
  GuardedTensor table(DType::kF32, {kVocabSize, 4}), narrow(DType::kF32, {2, 3}), half(DType::kBF16, {2, 4});
  EXPECT_THROW(embedding(some_ids(2), table.view(), narrow.view(), pool), Error);
  EXPECT_THROW(embedding(some_ids(2), table.view(), half.view(), pool), Error);
  EXPECT_THROW(embedding(some_ids(3), table.view(), half.view(), pool), Error);
  EXPECT_THROW(embedding_backward(some_ids(2), narrow.view(), kNoPaddingId, table.view(), pool), Error);
}

}  // namespace
}  // namespace tessera
