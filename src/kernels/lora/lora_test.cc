#include "kernels/lora/lora.h"

#include <gtest/gtest.h>

#include <cmath>

#include "support/kernel_test_util.h"

namespace tessera {
namespace {

// Two modules with ranks 3 and 5 and some outputs each.
constexpr int64_t kRank = 8;
struct Sizes {
  int64_t first, second;
};
constexpr Sizes kSizes[] = {{1, 1}, {4, 7}, {511, 513}, {600, 1100}};
constexpr LoraBlock block(bool is_second, int64_t first_size) {
  return is_second ? LoraBlock{3, first_size, 0.5f} : LoraBlock{0, 0, 3.0f};
}

TEST(LoraPlace, PutsScaledTransposesIntoTheirBlocksAlone) {
  ThreadPool pool(3);
  for (const DType dtype : kActivationTypes) {
    for (const auto& [first, second] : kSizes) {
      const int64_t N = first + second;
      GuardedTensor b1(dtype, {first, 3}), b2(dtype, {second, 5}), e(dtype, {kRank, N});
      b1.fill_normal(1);
      b2.fill_normal(2);
      e.fill(7);
      lora_place(b1.view(), block(false, first), e.view(), pool);
      lora_place(b2.view(), block(true, first), e.view(), pool);
      EXPECT_TRUE(e.guards_intact());
      for (int64_t r = 0; r < kRank; ++r) {
        for (int64_t n = 0; n < N; ++n) {
          const bool is_second = n >= first;
          GuardedTensor expected(dtype, {1});
          expected.set(0, 7);
          if (is_second && r >= 3) expected.set(0, static_cast<float>(0.5 * b2[(n - first) * 5 + r - 3]));
          if (!is_second && r < 3) expected.set(0, static_cast<float>(3 * b1[n * 3 + r]));
          ASSERT_EQ(e[r * N + n], expected[0]) << dtype_name(dtype) << " N " << N << " at " << r << ", " << n;
        }
      }
    }
  }
}

TEST(LoraTake, IsTheTransposeOfPlacing) {
  ThreadPool pool(2);
  for (const auto& [first, second] : kSizes) {
    const int64_t N = first + second;
    GuardedTensor de(DType::kF32, {kRank, N}), db(DType::kF32, {second, 5});
    de.fill_normal(1);
    for (const Update update : {Update::kOverwrite, Update::kAdd}) {
      const double base = update == Update::kAdd ? 0.25 : 0;
      if (update == Update::kAdd) db.fill(0.25f);
      lora_take(de.view(), block(true, first), db.view(), update, pool);
      EXPECT_TRUE(db.guards_intact());
      for (int64_t n = 0; n < second; ++n) {
        for (int64_t r = 0; r < 5; ++r) {
          ASSERT_EQ(db[n * 5 + r], static_cast<float>(base + 0.5 * de[(3 + r) * N + first + n]))
              << n << ", " << r;
        }
      }
    }
  }
}

std::vector<uint64_t> some_tokens(int64_t count) {
  std::vector<uint64_t> tokens;
  for (int64_t t = 0; t < count; ++t) tokens.push_back(static_cast<uint64_t>(1000 + 3 * t));
  return tokens;
}

TEST(DropoutOp, KeepsTheExpectedShareAndScalesIt) {
  ThreadPool pool(3);
  constexpr int64_t T = 200, D = 501;
  const std::vector<uint64_t> tokens = some_tokens(T);
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
  const std::vector<uint64_t> tokens = some_tokens(T);
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

TEST(LoraKernels, DoNotDependOnTheNumberOfThreads) {
  const auto run = [](ThreadPool& pool) {
    const std::vector<uint64_t> tokens = some_tokens(300);
    GuardedTensor x(DType::kBF16, {300, 700}), b(DType::kBF16, {1500, 8});
    x.fill_normal(1);
    b.fill_normal(2);
    std::vector<GuardedTensor> outputs;
    outputs.emplace_back(DType::kBF16, Shape{300, 700});
    outputs.emplace_back(DType::kBF16, Shape{8, 1500});
    dropout(x.view(), {0.1f, 7, tokens}, outputs[0].view(), Update::kOverwrite, pool);
    lora_place(b.view(), {0, 0, 2}, outputs[1].view(), pool);
    return outputs;
  };
  expect_thread_independent(run, "lora");
}

TEST(LoraKernels, WrongShapesAreBugs) {
  ThreadPool pool(1);
  GuardedTensor b(DType::kF32, {4, 2}), e(DType::kF32, {2, 5}), x(DType::kF32, {2, 5});
  EXPECT_THROW(lora_place(b.view(), {1, 0, 1}, e.view(), pool), Error);
  EXPECT_THROW(lora_take(e.view(), {0, 2, 1}, b.view(), Update::kAdd, pool), Error);
  EXPECT_THROW(dropout(x.view(), {0.5f, 0, some_tokens(3)}, x.view(), Update::kOverwrite, pool), Error);
}

}  // namespace
}  // namespace tessera
