// The sum of squares computed along with a weight gradient.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/gemm/exact_sum.h"
#include "kernels/gemm/gemm.h"
#include "kernels/gemm/gemm_impl.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

struct SquaresSizes {
  int64_t T, N, K;
};

double exact_squares(const GuardedTensor& dw) {
  double sum = 0;
  for (const double value : dw.values()) sum += value * value;
  return sum;
}

struct Weighted {
  GuardedTensor dw;
  double squares;
};

// dw = or += dy^T x with the dispatched implementation, on values whose squares span many binades.
Weighted run(DType dtype, SquaresSizes s, Update update, ThreadPool& pool) {
  GuardedTensor x(dtype, {s.T, s.K}), dy(dtype, {s.T, s.N});
  Weighted result = {GuardedTensor(DType::kF32, {s.N, s.K}), 0};
  x.fill_normal(1);
  dy.fill_normal(2, 1e-4f);
  for (int64_t t = 0; t < s.T; ++t) dy.set(t * s.N, dy[t * s.N] * 1e4f);
  result.dw.fill_normal(3, 1e-3f);
  const TestScratch scratch(gemm_scratch_bytes({s.T, {s.N, s.K}, dtype, pool.num_threads()}));
  gemm_backward_weight(dy.view(), x.view(), result.dw.view(), {update, &result.squares}, scratch.span(),
                       pool);
  return result;
}

// Whole and partial micro-tiles, several blocks, several chunks of tokens, two passes over tokens, no tokens.
const std::vector<SquaresSizes> kSizes = {{1, 1, 1},      {33, 31, 65},    {40, 32, 33},    {513, 96, 64},
                                          {70, 544, 514}, {100, 1100, 37}, {4099, 67, 100}, {0, 5, 7}};

TEST(GradientSquares, AreThoseOfTheGradientThatIsLeft) {
  ThreadPool pool(2);
  for (const DType dtype : kActivationTypes) {
    for (const SquaresSizes& s : kSizes) {
      for (const Update update : {Update::kOverwrite, Update::kAdd}) {
        const Weighted result = run(dtype, s, update, pool);
        const double expected = exact_squares(result.dw);
        EXPECT_NEAR(result.squares, expected, 0x1.0p-40 * expected)
            << dtype_name(dtype) << " T " << s.T << " N " << s.N << " K " << s.K;
        EXPECT_TRUE(result.dw.guards_intact());
      }
    }
  }
}

TEST(GradientSquares, AskingForThemDoesNotChangeTheGradient) {
  ThreadPool pool(2);
  for (const DType dtype : kActivationTypes) {
    const SquaresSizes s = {140, 270, 515};
    const Weighted asked = run(dtype, s, Update::kOverwrite, pool);
    GuardedTensor x(dtype, {s.T, s.K}), dy(dtype, {s.T, s.N}), dw(DType::kF32, {s.N, s.K});
    x.fill_normal(1);
    dy.fill_normal(2, 1e-4f);
    for (int64_t t = 0; t < s.T; ++t) dy.set(t * s.N, dy[t * s.N] * 1e4f);
    const TestScratch scratch(gemm_scratch_bytes({s.T, {s.N, s.K}, dtype, 2}));
    gemm_backward_weight(dy.view(), x.view(), dw.view(), Update::kOverwrite, scratch.span(), pool);
    EXPECT_EQ(asked.dw.values(), dw.values()) << dtype_name(dtype);
  }
}

TEST(GradientSquares, AreTheSameForAnyNumberOfThreadsAndInEveryRun) {
  for (const DType dtype : kActivationTypes) {
    for (const SquaresSizes& s : {SquaresSizes{70, 1100, 514}, SquaresSizes{513, 96, 64},
                                  SquaresSizes{20, 2100, 1030}, SquaresSizes{513, 700, 500}}) {
      ThreadPool one(1);
      const double expected = run(dtype, s, Update::kAdd, one).squares;
      for (const int64_t num_threads : {1, 2, 3, 4}) {
        ThreadPool pool(num_threads);
        for (int repeat = 0; repeat < 3; ++repeat) {
          EXPECT_EQ(run(dtype, s, Update::kAdd, pool).squares, expected)
              << dtype_name(dtype) << ", " << num_threads << " threads";
        }
      }
    }
  }
}

// Padding that meets an infinite operand is NaN inside the kernel but not part of the gradient.
TEST(GradientSquares, AreNotFiniteWhenAnElementIsNot) {
  ThreadPool pool(2);
  for (const DType dtype : kActivationTypes) {
    GuardedTensor x(dtype, {3, 7}), dy(dtype, {3, 5}), dw(DType::kF32, {5, 7});
    x.fill(1);
    dy.fill(1);
    dy.set(0, HUGE_VALF);
    const TestScratch scratch(gemm_scratch_bytes({3, {7, 7}, dtype, 2}));
    double squares = 0;
    gemm_backward_weight(dy.view(), x.view(), dw.view(), {Update::kOverwrite, &squares}, scratch.span(),
                         pool);
    EXPECT_EQ(squares, HUGE_VAL) << dtype_name(dtype);
    x.set(3, NAN);
    squares = 0;
    gemm_backward_weight(dy.view(), x.view(), dw.view(), {Update::kOverwrite, &squares}, scratch.span(),
                         pool);
    EXPECT_TRUE(std::isnan(squares)) << dtype_name(dtype);
  }
}

TEST(GradientSquares, AreAddedToWhatIsThere) {
  ThreadPool pool(1);
  GuardedTensor x(DType::kBF16, {2, 4}), dy(DType::kBF16, {2, 3}), dw(DType::kF32, {3, 4});
  x.fill(1);
  dy.fill(1);
  const TestScratch scratch(gemm_scratch_bytes({2, {4, 4}, DType::kBF16, 1}));
  double squares = 5;
  gemm_backward_weight(dy.view(), x.view(), dw.view(), {Update::kOverwrite, &squares}, scratch.span(), pool);
  EXPECT_EQ(squares, 5 + 12 * 4);
}

TEST(ExactSum, IsTheSameInAnyOrderAndExact) {
  std::vector<double> values = {0x1.0p-298, 0x1.fffffffffffffp-100, 3, 0x1.fffffcp+255, 1e-3, 0, 1e-300};
  std::sort(values.begin(), values.end());
  ExactSum first;
  for (const double value : values) first.add(value);
  EXPECT_EQ(first.value(), 0x1.fffffcp+255);
  while (std::next_permutation(values.begin(), values.end())) {
    ExactSum sum;
    for (const double value : values) sum.add(value);
    ASSERT_EQ(sum.value(), first.value());
  }
}

TEST(ExactSum, CarriesAcrossDigits) {
  ExactSum sum, part, smallest;
  for (int i = 0; i < 1 << 20; ++i) part.add(0x1.fffffffffffffp-12);
  part.add_to_shared(sum);
  part.add_to_shared(sum);
  EXPECT_EQ(sum.value(), 2 * 0x1.0p20 * 0x1.fffffffffffffp-12);
  smallest.add(0x1.0p-298);
  EXPECT_EQ(smallest.value(), 0x1.0p-298);
  EXPECT_EQ(ExactSum().value(), 0);
}

TEST(ExactSum, KeepsWhatIsNotFinite) {
  ExactSum infinite, undefined, sum;
  infinite.add(1);
  infinite.add(HUGE_VAL);
  EXPECT_EQ(infinite.value(), HUGE_VAL);
  undefined.add(NAN);
  infinite.add_to_shared(sum);
  EXPECT_EQ(sum.value(), HUGE_VAL);
  undefined.add_to_shared(sum);
  EXPECT_TRUE(std::isnan(sum.value()));
}

}  // namespace
}  // namespace tessera
