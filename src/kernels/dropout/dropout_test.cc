#include <gtest/gtest.h>

#include <cmath>

#include "kernels/dropout/dropout_impl.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

std::vector<uint64_t> tokens_of(int64_t count) {
  std::vector<uint64_t> tokens;
  for (int64_t t = 0; t < count; ++t) tokens.push_back(static_cast<uint64_t>(1000 + 3 * t));
  return tokens;
}

TEST(DropoutOp, KeepsTheExpectedShareAndScalesIt) {
  ThreadPool pool(3);
  constexpr int64_t T = 200, D = 501;
  const std::vector<uint64_t> tokens = tokens_of(T);
  for (const float probability : {0.05f, 0.5f}) {
    GuardedTensor x(DType::kF32, {T, D}), y(DType::kF32, {T, D});
    x.fill(1);
    dropout(x.view(), {probability, 7, tokens}, y.view(), Update::kOverwrite, pool);
    EXPECT_TRUE(y.guards_intact());
    double num_dropped = 0;
    const double rounded = std::lround(probability * 65536) / 65536.0;
    for (int64_t i = 0; i < T * D; ++i) {
      num_dropped += y[i] == 0;
      if (y[i] == 0) continue;
      ASSERT_EQ(static_cast<float>(y[i]), static_cast<float>(1 / (1 - rounded)));
    }
    const double n = T * D;  // five standard deviations
    EXPECT_NEAR(num_dropped, n * probability, 5 * std::sqrt(n * probability * (1 - probability)));
  }
}

// The mask of a token does not depend on the rows around it.
TEST(DropoutOp, DependsOnSiteTokenAndColumnAlone) {
  ThreadPool pool(2);
  constexpr int64_t T = 40, D = 33;
  const std::vector<uint64_t> tokens = tokens_of(T);
  for (const DType dtype : kActivationTypes) {
    GuardedTensor x(dtype, {T, D}), all(dtype, {T, D}), other(dtype, {T, D});
    x.fill_normal(1);
    dropout(x.view(), {0.5f, 7, tokens}, all.view(), Update::kOverwrite, pool);
    dropout(x.view(), {0.5f, 8, tokens}, other.view(), Update::kOverwrite, pool);
    EXPECT_NE(all.bits(), other.bits());
    const auto row_bytes = static_cast<size_t>(D * dtype_bytes(dtype));
    for (const int64_t t : {0, 17, 39}) {
      GuardedTensor row(dtype, {1, D});
      dropout(x.view().rows(t, t + 1), {0.5f, 7, std::span(tokens).subspan(static_cast<size_t>(t), 1)},
              row.view(), Update::kOverwrite, pool);
      EXPECT_EQ(row.bits(), all.bits().substr(static_cast<size_t>(t) * row_bytes, row_bytes)) << t;
    }
    GuardedTensor sum = x;
    dropout(x.view(), {0.5f, 7, tokens}, sum.view(), Update::kAdd, pool);
    for (int64_t i = 0; i < T * D; ++i) {
      GuardedTensor expected(dtype, {1});
      expected.set(0, static_cast<float>(x[i] + all[i]));
      ASSERT_EQ(sum[i], expected[0]) << i;
    }
  }
}

TEST(DropoutOp, IsTheReferenceInEveryImplementation) {
  ThreadPool pool(2);
  std::vector<uint64_t> tokens = tokens_of(5);
  tokens[3] = ~uint64_t{0};
  for (const auto& implementation : dropout_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t D : {1, 7, 8, 9, 63, 127, 128, 129, 255, 257, 700}) {
        for (const Update update : {Update::kOverwrite, Update::kAdd}) {
          GuardedTensor x(dtype, {5, D}), expected(dtype, {5, D});
          x.fill_normal(1);
          expected.fill_normal(2);
          GuardedTensor y = expected;
          const Dropout which = {0.3f, 0xABCD'0000'1234, tokens};
          dropout_ref().front().kernels.dropout(x.view(), which, expected.view(), update, pool);
          implementation.kernels.dropout(x.view(), which, y.view(), update, pool);
          EXPECT_TRUE(y.guards_intact()) << describe(implementation) << " D " << D;
          ASSERT_EQ(y.bits(), expected.bits())
              << describe(implementation) << " " << dtype_name(dtype) << " D " << D;
        }
      }
    }
  }
}

// What two sites, two tokens or two columns drop is independent: they agree as often as two coins.
TEST(DropoutOp, MasksOfSitesTokensAndColumnsAreIndependent) {
  constexpr int64_t kElements = 200'000;
  constexpr double kProbability = 0.1;
  const auto is_dropped = [](uint64_t site, uint64_t token, int64_t element) {
    return dropout_number(site, token, element) < Dropout{kProbability}.threshold();
  };
  const auto expect_independent = [&](const char* of, const auto& other) {
    double both = 0;
    for (int64_t i = 0; i < kElements; ++i) both += is_dropped(7, 100, i) && other(i);
    const double share = kProbability * kProbability;
    EXPECT_NEAR(both / kElements, share, 5 * std::sqrt(share / kElements)) << of;
  };
  expect_independent("sites", [&](int64_t i) { return is_dropped(6, 100, i); });
  expect_independent("tokens", [&](int64_t i) { return is_dropped(7, 101, i); });
  expect_independent("columns", [&](int64_t i) { return is_dropped(7, 100, i + 1); });
  expect_independent("groups", [&](int64_t i) { return is_dropped(7, 100, i + kDropoutGroup); });
}

TEST(DropoutOp, DoesNotDependOnTheNumberOfThreads) {
  const auto run = [](ThreadPool& pool) {
    const std::vector<uint64_t> tokens = tokens_of(300);
    GuardedTensor x(DType::kBF16, {300, 700});
    x.fill_normal(1);
    std::vector<GuardedTensor> outputs;
    outputs.emplace_back(DType::kBF16, Shape{300, 700});
    dropout(x.view(), {0.1f, 7, tokens}, outputs[0].view(), Update::kOverwrite, pool);
    return outputs;
  };
  expect_thread_independent(run, "dropout");
}

TEST(DropoutOp, WrongShapesAreBugs) {
  ThreadPool pool(1);
  GuardedTensor x(DType::kF32, {2, 5});
  EXPECT_THROW(dropout(x.view(), {0.5f, 0, tokens_of(3)}, x.view(), Update::kOverwrite, pool), Error);
}

}  // namespace
}  // namespace tessera
