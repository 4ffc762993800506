#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "kernels/elementwise/elementwise_impl.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

// Around every vector length (4, 8, 16 float32; twice that in flight), and more than one parallel block.
constexpr int64_t kCounts[] = {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 1000, 40001};

TEST(Zero, ClearsEveryElementAndNoMore) {
  ThreadPool pool(3);
  for (const DType dtype : kActivationTypes) {
    for (const int64_t count : {0, 1, 63, 1 << 20, (5 << 18) + 3}) {
      GuardedTensor x(dtype, {count});
      zero(x.view(), pool);
      EXPECT_TRUE(x.guards_intact());
      EXPECT_TRUE(x.values() == std::vector<double>(static_cast<size_t>(count))) << "count " << count;
    }
  }
}

TEST(Add, IsTheRoundedSumInEveryImplementation) {
  ThreadPool pool(2);
  for (const auto& implementation : elementwise_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t count : kCounts) {
        GuardedTensor x(dtype, {count}), y(dtype, {count});
        x.fill_normal(1);
        y.fill_normal(2, 3);
        std::vector<float> expected;
        for (int64_t i = 0; i < count; ++i)
          expected.push_back(static_cast<float>(x[i]) + static_cast<float>(y[i]));
        implementation.kernels.add(x.view(), y.view(), pool);
        EXPECT_TRUE(x.guards_intact()) << describe(implementation) << " count " << count;
        for (int64_t i = 0; i < count; ++i) {
          const float want = expected[static_cast<size_t>(i)];
          ASSERT_EQ(x[i], dtype == DType::kBF16 ? to_float(to_bf16(want)) : want)
              << describe(implementation) << " " << dtype_name(dtype) << " count " << count << " index " << i;
        }
      }
    }
  }
}

TEST(Scale, IsTheRoundedProductInEveryImplementation) {
  ThreadPool pool(2);
  for (const auto& implementation : elementwise_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t count : kCounts) {
        GuardedTensor x(dtype, {count});
        x.fill_normal(1);
        GuardedTensor before = x;
        x.fill_normal(2);
        implementation.kernels.scale(before.view(), 0.0441941738f, x.view(), pool);
        EXPECT_TRUE(x.guards_intact());
        for (int64_t i = 0; i < count; ++i) {
          const float want = static_cast<float>(before[i]) * 0.0441941738f;
          ASSERT_EQ(x[i], dtype == DType::kBF16 ? to_float(to_bf16(want)) : want)
              << describe(implementation) << " " << dtype_name(dtype) << " count " << count << " index " << i;
        }
      }
    }
  }
}

TEST(SoftCap, MatchesTheFormulaInEveryImplementation) {
  ThreadPool pool(2);
  for (const auto& implementation : elementwise_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t count : kCounts) {
        const std::string context =
            fmt::format("{} {} {}", describe(implementation), dtype_name(dtype), count);
        constexpr float kCap = 3;
        GuardedTensor x(dtype, {count}), capped(DType::kF32, {count}), dx(dtype, {count});
        x.fill_normal(1, 4);  // small values, and tanh close to 1
        dx.fill_normal(2);
        std::vector<Expected> want, want_dx;
        for (int64_t i = 0; i < count; ++i) {
          const double tangent = std::tanh(x[i] / kCap);
          want.push_back({kCap * tangent, 6 * kFloatEps * std::abs(kCap * tangent)});
          capped.set(i, static_cast<float>(kCap * tangent));
          want_dx.push_back({dx[i] * (1 - tangent * tangent), 5 * kFloatEps * std::abs(dx[i])});
        }
        implementation.kernels.soft_cap(x.view(), kCap, pool);
        expect_within(x, want, context);
        implementation.kernels.soft_cap_backward(capped.view(), kCap, dx.view(), pool);
        expect_within(dx, want_dx, context + " backward");
      }
    }
  }
}

TEST(SoftCap, KeepsWhatIsNotANumberAndBoundsInfinity) {
  ThreadPool pool(1);
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  for (const auto& implementation : elementwise_table().usable()) {
    GuardedTensor x(DType::kF32, {4});
    for (const auto& [at, value] : {std::pair(0, kInfinity), std::pair(1, -kInfinity), std::pair(2, 1e30f)})
      x.set(at, value);
    x.set(3, std::numeric_limits<float>::quiet_NaN());
    implementation.kernels.soft_cap(x.view(), 30, pool);
    EXPECT_EQ(x[0], 30) << describe(implementation);
    EXPECT_EQ(x[1], -30) << describe(implementation);
    EXPECT_EQ(x[2], 30) << describe(implementation);
    EXPECT_TRUE(std::isnan(x[3])) << describe(implementation);
  }
}

TEST(SoftCap, GradientsAgreeWithDifferences) {
  ThreadPool pool(1);
  const auto kernels = elementwise_ref().front().kernels;
  for (const float at : {0.0f, 0.5f, -2.0f, 6.0f}) {
    constexpr float kStep = 0x1.0p-7f, kCap = 2.5f;
    GuardedTensor x(DType::kF32, {3}), dx(DType::kF32, {3});
    for (int64_t i = 0; i < 3; ++i) x.set(i, at + static_cast<float>(i - 1) * kStep);
    dx.fill(1);
    kernels.soft_cap(x.view(), kCap, pool);
    kernels.soft_cap_backward(x.view(), kCap, dx.view(), pool);
    // An error of a sixth of the squared step times a third derivative below 1.
    EXPECT_NEAR((x[2] - x[0]) / (2 * kStep), dx[1], 4e-5) << at;
  }
}

TEST(RoundTo, RoundsOnceToTheNearest) {
  ThreadPool pool(2);
  for (const auto& implementation : elementwise_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      for (const int64_t count : kCounts) {
        GuardedTensor from(DType::kF32, {count}), to(dtype, {count});
        from.fill_normal(1);
        if (count > 3) from.set(3, std::numeric_limits<float>::quiet_NaN());
        implementation.kernels.round_to(from.view(), to.view(), pool);
        EXPECT_TRUE(to.guards_intact());
        GuardedTensor expected(dtype, {count});
        for (int64_t i = 0; i < count; ++i) expected.set(i, static_cast<float>(from[i]));
        EXPECT_TRUE(to.bits() == expected.bits())
            << describe(implementation) << " " << dtype_name(dtype) << " count " << count;
      }
    }
  }
}

TEST(Add, KeepsInfinitiesAndNan) {
  ThreadPool pool(1);
  const float inf = std::numeric_limits<float>::infinity();
  for (const auto& implementation : elementwise_table().usable()) {
    for (const DType dtype : kActivationTypes) {
      GuardedTensor x(dtype, {40}), y(dtype, {40});
      x.fill(1);
      y.fill(inf);
      y.set(3, std::numeric_limits<float>::quiet_NaN());
      x.set(5, -inf);
      implementation.kernels.add(x.view(), y.view(), pool);
      EXPECT_EQ(x[0], inf) << describe(implementation);
      EXPECT_TRUE(std::isnan(x[3])) << describe(implementation);
      EXPECT_TRUE(std::isnan(x[5])) << describe(implementation);
    }
  }
}

TEST(SumOfSquares, SmallIntegersAreExact) {
  ThreadPool pool(2);
  for (const auto& implementation : elementwise_table().usable()) {
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{17}, int64_t{1000}, kSumOfSquaresBlock - 1,
                                kSumOfSquaresBlock, kSumOfSquaresBlock + 1, 3 * kSumOfSquaresBlock + 5}) {
      GuardedTensor x(DType::kF32, {count});
      double expected = 0;
      for (int64_t i = 0; i < count; ++i) {
        x.set(i, static_cast<float>(i % 1021 - 500));
        expected += x[i] * x[i];
      }
      const TestScratch scratch(sum_of_squares_scratch_bytes(count));
      const std::span<const float> values(x.view().as<float>(), static_cast<size_t>(count));
      EXPECT_EQ(implementation.kernels.sum_of_squares(values, scratch.span(), pool), expected)
          << describe(implementation) << " count " << count;
    }
  }
}

TEST(SumOfSquares, LargeAndTinyValuesNeitherOverflowNorVanish) {
  ThreadPool pool(1);
  for (const auto& implementation : elementwise_table().usable()) {
    const TestScratch scratch(sum_of_squares_scratch_bytes(33));
    std::vector<float> x(33, 1e30f);
    EXPECT_NEAR(implementation.kernels.sum_of_squares(x, scratch.span(), pool) / (33 * 1e60), 1, 1e-6);
    x.assign(33, 1e-30f);
    EXPECT_NEAR(implementation.kernels.sum_of_squares(x, scratch.span(), pool) / (33 * 1e-60), 1, 1e-6);
    x[32] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(implementation.kernels.sum_of_squares(x, scratch.span(), pool)));
  }
}

TEST(SumOfSquares, DoesNotDependOnTheNumberOfThreads) {
  for (const auto& implementation : elementwise_table().usable()) {
    const int64_t count = 5 * kSumOfSquaresBlock + 77;
    GuardedTensor x(DType::kF32, {count});
    x.fill_normal(3);
    expect_thread_independent(
        [&](ThreadPool& pool) {
          const TestScratch scratch(sum_of_squares_scratch_bytes(count));
          const std::span<const float> values(x.view().as<float>(), static_cast<size_t>(count));
          const double sum = implementation.kernels.sum_of_squares(values, scratch.span(), pool);
          std::vector<GuardedTensor> output;
          output.emplace_back(DType::kF32, Shape{2});
          std::memcpy(output[0].view().as<float>(), &sum, sizeof(sum));
          return output;
        },
        describe(implementation));
  }
}

TEST(Elementwise, RefusesMismatchedOperands) {
  ThreadPool pool(1);
  GuardedTensor x(DType::kF32, {4}), y(DType::kBF16, {4}), z(DType::kF32, {5});
  EXPECT_THROW(add(x.view(), y.view(), pool), Error);
  EXPECT_THROW(add(x.view(), z.view(), pool), Error);
  EXPECT_THROW(sum_of_squares(std::vector<float>(3), {}, pool), Error);
}

}  // namespace
}  // namespace tessera
