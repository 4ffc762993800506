#include "kernels/lora/lora.h"

#include <gtest/gtest.h>

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

TEST(LoraKernels, DoNotDependOnTheNumberOfThreads) {
  const auto run = [](ThreadPool& pool) {
    GuardedTensor b(DType::kBF16, {1500, 8});
    b.fill_normal(2);
    std::vector<GuardedTensor> outputs;
    outputs.emplace_back(DType::kBF16, Shape{8, 1500});
    lora_place(b.view(), {0, 0, 2}, outputs[0].view(), pool);
    return outputs;
  };
  expect_thread_independent(run, "lora");
}

TEST(LoraKernels, WrongShapesAreBugs) {
  ThreadPool pool(1);
  GuardedTensor b(DType::kF32, {4, 2}), e(DType::kF32, {2, 5});
  EXPECT_THROW(lora_place(b.view(), {1, 0, 1}, e.view(), pool), Error);
  EXPECT_THROW(lora_take(e.view(), {0, 2, 1}, b.view(), Update::kAdd, pool), Error);
}

}  // namespace
}  // namespace tessera
