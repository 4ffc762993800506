#include <gtest/gtest.h>

#include <limits>

#include "kernels/rank_sum/rank_sum_impl.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

// Around every vector length (1, 8, 16 float32; four in flight), and more than one block.
constexpr int64_t kCounts[] = {0,  1,  3,  4,  5,  7,  8,  9,  15, 16,  17,   31,
                               32, 33, 63, 64, 65, 66, 79, 80, 81, 129, 1000, kRankSumBlock + 77};

RankInput input_of(const GuardedTensor& tensor) {
  if (tensor.dtype() == DType::kBF16) return tensor.view().as<bf16>();
  return tensor.view().as<float>();
}

// Contributions of `num` ranks: BF16 except for rank `own`, or all float32.
std::vector<GuardedTensor> contributions(int num, int own, int64_t count) {
  std::vector<GuardedTensor> result;
  for (int r = 0; r < num; ++r) {
    result.emplace_back(own < 0 || r == own ? DType::kF32 : DType::kBF16, Shape{count});
    result.back().fill_normal(static_cast<uint64_t>(100 + r));
  }
  return result;
}

std::vector<RankInput> inputs_of(const std::vector<GuardedTensor>& tensors) {
  std::vector<RankInput> inputs;
  for (const GuardedTensor& tensor : tensors) inputs.push_back(input_of(tensor));
  return inputs;
}

struct Case {
  int num;
  int own;  // -1: all are float32
  Update update;
  Stores stores;
};

std::vector<Case> all_cases() {
  std::vector<Case> cases;
  for (const int num : {1, 2, 3, 4, 7, 64}) {
    for (const int own : {-1, 0, num - 1}) {
      for (const Update update : {Update::kOverwrite, Update::kAdd}) {
        for (const Stores stores : {Stores::kCached, Stores::kStreaming}) {
          cases.push_back({num, own, update, stores});
        }
      }
    }
  }
  return cases;
}

std::string describe(const Case& c, int64_t count) {
  return fmt::format(" {} inputs, own {}, {}, {}, count {}", c.num, c.own,
                     c.update == Update::kAdd ? "add" : "overwrite",
                     c.stores == Stores::kCached ? "cached" : "streaming", count);
}

// Initial contents of y: something to add to, or poison.
GuardedTensor output_before(const Case& c, int64_t count) {
  GuardedTensor y(DType::kF32, {count});
  if (c.update == Update::kAdd) y.fill_normal(7);
  return y;
}

TEST(RankSum, IsBitEqualToTheReferenceInEveryImplementation) {
  const RankSumKernels ref = rank_sum_ref()[0].kernels;
  for (const auto& implementation : rank_sum_table().usable()) {
    for (const Case& c : all_cases()) {
      for (const int64_t count : kCounts) {
        if (count > 100 && c.num > 4) continue;
        const std::vector<GuardedTensor> tensors = contributions(c.num, c.own, count);
        const std::vector<RankInput> inputs = inputs_of(tensors);
        GuardedTensor y = output_before(c, count), expected = output_before(c, count);
        ref.sum(inputs, c.update, c.stores, expected.view().as<float>(), 0, count);
        implementation.kernels.sum(inputs, c.update, c.stores, y.view().as<float>(), 0, count);
        ASSERT_TRUE(y.guards_intact()) << describe(implementation) << describe(c, count);
        ASSERT_TRUE(y.bits() == expected.bits()) << describe(implementation) << describe(c, count);
      }
    }
  }
}

TEST(RankSum, StreamsToAlignedOutputs) {
  const RankSumKernels ref = rank_sum_ref()[0].kernels;
  constexpr int64_t kCount = 1000;
  const std::vector<GuardedTensor> tensors = contributions(3, -1, kCount);
  const std::vector<RankInput> inputs = inputs_of(tensors);
  std::vector<float> expected(kCount);
  ref.sum(inputs, Update::kOverwrite, Stores::kCached, expected.data(), 0, kCount);
  for (const auto& implementation : rank_sum_table().usable()) {
    const TestScratch memory((kCount + 16) * 4);
    float* const y = reinterpret_cast<float*>(memory.span().data());
    implementation.kernels.sum(inputs, Update::kOverwrite, Stores::kStreaming, y, 0, kCount);
    EXPECT_EQ(std::memcmp(y, expected.data(), kCount * 4), 0) << describe(implementation);
    for (int64_t i = kCount; i < kCount + 16; ++i) EXPECT_TRUE(std::isnan(y[i])) << describe(implementation);
  }
}

TEST(RankSum, WorksOnARangeWithoutTouchingTheRest) {
  const RankSumKernels ref = rank_sum_ref()[0].kernels;
  const std::vector<GuardedTensor> tensors = contributions(3, 1, 300);
  const std::vector<RankInput> inputs = inputs_of(tensors);
  for (const auto& implementation : rank_sum_table().usable()) {
    GuardedTensor y(DType::kF32, {300}), expected(DType::kF32, {300});
    ref.sum(inputs, Update::kOverwrite, Stores::kCached, expected.view().as<float>(), 17, 219);
    implementation.kernels.sum(inputs, Update::kOverwrite, Stores::kCached, y.view().as<float>(), 17, 219);
    EXPECT_TRUE(y.bits() == expected.bits()) << describe(implementation);
  }
}

TEST(RankSum, AddsInTheOrderOfRanks) {
  // 2^24 + 1 is rounded away, 1 + 1 + 2^24 is not: a different order gives a different result.
  const float big = 0x1.0p24f;
  const std::vector<float> a(40, big), b(40, 1.0f), c(40, 1.0f);
  std::vector<float> y(40, 1.0f);
  rank_sum(std::vector<RankInput>{a.data(), b.data(), c.data()}, Update::kOverwrite, y.data(), 40, nullptr);
  EXPECT_EQ(y, std::vector<float>(40, big));
  rank_sum(std::vector<RankInput>{b.data(), c.data(), a.data()}, Update::kOverwrite, y.data(), 40, nullptr);
  EXPECT_EQ(y, std::vector<float>(40, big + 2));
  // First the sum of the ranks, then the previous y.
  y.assign(40, 1.0f);
  rank_sum(std::vector<RankInput>{b.data(), a.data()}, Update::kAdd, y.data(), 40, nullptr);
  EXPECT_EQ(y, std::vector<float>(40, big));
}

TEST(RankSum, OutputMayBeAnInput) {
  ThreadPool pool(2);
  const int64_t count = 2 * kRankSumBlock + 5;
  const std::vector<GuardedTensor> tensors = contributions(3, 1, count);
  std::vector<RankInput> inputs = inputs_of(tensors);
  std::vector<float> expected(static_cast<size_t>(count));
  rank_sum(inputs, Update::kOverwrite, expected.data(), count, &pool);
  const float* own = tensors[1].view().as<float>();
  std::vector<float> y(own, own + count);
  inputs[1] = y.data();
  rank_sum(inputs, Update::kOverwrite, y.data(), count, &pool);
  EXPECT_TRUE(y == expected);
}

TEST(RankSum, KeepsInfinitiesAndNan) {
  const float inf = std::numeric_limits<float>::infinity();
  std::vector<float> a(40, 1.0f), b(40, 2.0f);
  a[3] = std::numeric_limits<float>::quiet_NaN();
  a[5] = inf;
  a[7] = inf;
  b[7] = -inf;
  for (const auto& implementation : rank_sum_table().usable()) {
    std::vector<float> y(40);
    implementation.kernels.sum(std::vector<RankInput>{a.data(), b.data()}, Update::kOverwrite,
                               Stores::kCached, y.data(), 0, 40);
    EXPECT_TRUE(std::isnan(y[3])) << describe(implementation);
    EXPECT_EQ(y[5], inf) << describe(implementation);
    EXPECT_TRUE(std::isnan(y[7])) << describe(implementation);
    EXPECT_EQ(y[0], 3.0f) << describe(implementation);
  }
}

TEST(RankSum, SameBitsForAnyNumberOfThreadsAndNone) {
  const int64_t count = 5 * kRankSumBlock + 33;
  const std::vector<GuardedTensor> tensors = contributions(2, -1, count);
  const std::vector<RankInput> inputs = inputs_of(tensors);
  const auto run = [&](ThreadPool* pool) {
    std::vector<GuardedTensor> outputs;
    outputs.emplace_back(DType::kF32, Shape{count});
    rank_sum(inputs, Update::kOverwrite, outputs[0].view().as<float>(), count, pool);
    return outputs;
  };
  expect_thread_independent([&](ThreadPool& pool) { return run(&pool); }, "rank_sum");
  ThreadPool pool(2);
  const std::vector<GuardedTensor> with = run(&pool), without = run(nullptr);
  EXPECT_TRUE(with[0].bits() == without[0].bits());
}

TEST(RankSum, SubnormalsAreZeroWithAndWithoutPool) {
  const std::vector<float> tiny(33, std::numeric_limits<float>::denorm_min() * 1000);
  ThreadPool pool(2);
  for (ThreadPool* const with : {&pool, static_cast<ThreadPool*>(nullptr)}) {
    std::vector<float> y(33, 1.0f);
    rank_sum(std::vector<RankInput>{tiny.data(), tiny.data()}, Update::kOverwrite, y.data(), 33, with);
    EXPECT_EQ(y, std::vector<float>(33, 0.0f));
  }
}

TEST(RankSum, RefusesNoInputs) {
  std::vector<float> y(4);
  EXPECT_THROW(rank_sum({}, Update::kOverwrite, y.data(), 4, nullptr), Error);
}

TEST(RoundToBf16, RoundsOnceToTheNearestInEveryImplementation) {
  for (const auto& implementation : rank_sum_table().usable()) {
    for (const int64_t count : kCounts) {
      GuardedTensor x(DType::kF32, {count}), y(DType::kBF16, {count}), expected(DType::kBF16, {count});
      x.fill_normal(5);
      if (count > 3) x.set(3, std::numeric_limits<float>::quiet_NaN());
      for (int64_t i = 0; i < count; ++i) expected.set(i, static_cast<float>(x[i]));
      implementation.kernels.round(x.view().as<float>(), y.view().as<bf16>(), 0, count);
      EXPECT_TRUE(y.guards_intact()) << describe(implementation) << " count " << count;
      EXPECT_TRUE(y.bits() == expected.bits()) << describe(implementation) << " count " << count;
    }
  }
}

}  // namespace
}  // namespace tessera
