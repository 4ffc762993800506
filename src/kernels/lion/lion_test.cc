#include <gtest/gtest.h>

#include "kernels/block_code/block_code.h"
#include "kernels/lion/lion_impl.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

constexpr int64_t kCounts[] = {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 40003};

const LionScalars kScalars = lion_scalars(3e-3, 0.9, 0.99, 0.1, 0.25);

struct State {
  std::vector<float> weight, gradient, m;
  std::vector<bf16> high;
  std::vector<int16_t> remainder;

  explicit State(int64_t count) : gradient(static_cast<size_t>(count)), m(gradient) {
    const CounterRng rng(1, 1);
    for (int64_t i = 0; i < count; ++i) {
      weight.push_back(rng.normal(static_cast<uint64_t>(i)));
      high.push_back(master_weight(weight.back()));
      remainder.push_back(master_remainder(weight.back()));
    }
  }
  // Every third gradient is zero, so that moments change their sign and meet zero.
  void new_gradient(int64_t step) {
    const CounterRng rng(static_cast<uint64_t>(10 + step), 1);
    for (size_t i = 0; i < gradient.size(); ++i) gradient[i] = i % 3 == 0 ? 0.0f : rng.normal(i);
  }
  std::vector<uint32_t> bits(bool split) const {
    std::vector<uint32_t> all;
    for (size_t i = 0; i < weight.size(); ++i) {
      all.push_back(std::bit_cast<uint32_t>(split ? join_master(high[i], remainder[i]) : weight[i]));
      all.push_back(std::bit_cast<uint32_t>(m[i]));
    }
    return all;
  }
};

TEST(Lion, EveryImplementationIsBitEqualToTheReference) {
  ThreadPool pool(2);
  const LionKernels reference = lion_ref()[0].kernels;
  for (const auto& implementation : lion_table().usable()) {
    for (const int64_t count : kCounts) {
      State expected(count), f32(count), split(count);
      for (int64_t step = 1; step <= 4; ++step) {
        for (State* state : {&expected, &f32, &split}) state->new_gradient(step);
        reference.update_f32(expected.weight.data(), expected.gradient.data(), expected.m.data(), count,
                             kScalars, pool);
        implementation.kernels.update_f32(f32.weight.data(), f32.gradient.data(), f32.m.data(), count,
                                          kScalars, pool);
        implementation.kernels.update_bf16(split.high.data(), split.remainder.data(), split.gradient.data(),
                                           split.m.data(), count, kScalars, pool);
      }
      const std::string context = fmt::format("{} count {}", describe(implementation), count);
      EXPECT_EQ(f32.bits(false), expected.bits(false)) << context;
      EXPECT_EQ(split.bits(true), expected.bits(false)) << context;
    }
  }
}

TEST(Lion, CodedMomentsAreBitEqualToTheReferenceInAnyBlocks) {
  ThreadPool pool(3);
  const LionKernels reference = lion_ref()[0].kernels;
  for (const auto& implementation : lion_table().usable()) {
    for (const int64_t count : {0, 1, 31, 32, 33, 64, 95, 66'017}) {
      const int64_t offset = 96 * count, cut = count / 3 / kCodeBlock * kCodeBlock;
      const auto size = static_cast<size_t>((count + kCodeBlock - 1) / kCodeBlock * kCodeBlockBytes);
      State expected(count), split(count);
      std::vector<std::byte> expected_m(size), m(size);
      for (int64_t step = 1; step <= 3; ++step) {
        expected.new_gradient(step);
        reference.update_f32_8bit(expected.weight.data(), expected.gradient.data(),
                                  {expected_m.data(), offset, step}, count, kScalars, pool);
        for (const auto& [begin, end] : {std::pair(int64_t{0}, cut), std::pair(cut, count)}) {
          implementation.kernels.update_bf16_8bit(
              split.high.data() + begin, split.remainder.data() + begin, expected.gradient.data() + begin,
              {m.data() + begin / kCodeBlock * kCodeBlockBytes, offset + begin, step}, end - begin, kScalars,
              pool);
        }
      }
      const std::string context = fmt::format("{} count {}", describe(implementation), count);
      EXPECT_EQ(split.bits(true), expected.bits(false)) << context;
      EXPECT_TRUE(m == expected_m) << context;
      if (count < 2) continue;
      std::vector<float> values(1);
      read_codes(DType::kI8, m.data(), 1, values);
      EXPECT_NE(values[0], 0) << context;
    }
  }
}

TEST(Lion, FollowsTheFormulasInDouble) {
  ThreadPool pool(1);
  const int64_t count = 60;
  for (const auto& implementation : lion_table().usable()) {
    State state(count);
    std::vector<double> w(state.weight.begin(), state.weight.end()), m(count);
    for (int64_t step = 1; step <= 20; ++step) {
      state.new_gradient(step);
      for (size_t i = 0; i < count; ++i) {
        const double g = 0.25 * static_cast<double>(state.gradient[i]);
        const double direction = 0.9 * m[i] + 0.1 * g;
        w[i] = w[i] * (1 - 3e-3 * 0.1) - 3e-3 * (direction > 0 ? 1 : direction < 0 ? -1 : 0);
        m[i] = 0.99 * m[i] + 0.01 * g;
      }
      implementation.kernels.update_f32(state.weight.data(), state.gradient.data(), state.m.data(), count,
                                        kScalars, pool);
    }
    for (size_t i = 0; i < count; ++i) {
      EXPECT_NEAR(state.weight[i], w[i], 1e-5) << describe(implementation) << " index " << i;
      EXPECT_NEAR(state.m[i], m[i], 1e-6) << describe(implementation) << " index " << i;
    }
  }
}

}  // namespace
}  // namespace tessera
