#include <gtest/gtest.h>

#include <cfloat>

#include "kernels/adamw/adamw_impl.h"
#include "kernels/block_code/block_code.h"
#include "kernels/rounding_bits.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

constexpr int64_t kCounts[] = {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 40003};

AdamWScalars some_scalars(int64_t step) { return adamw_scalars(3e-3, 0.9, 0.95, 1e-8, 0.1, step, 0.25); }

// Magnitudes from subnormal to large, both signs.
float wild_value(uint64_t seed, int64_t i) {
  const CounterRng rng(seed, 1);
  const auto index = static_cast<uint64_t>(2 * i);
  return rng.normal(index) * std::exp2(std::floor(rng.uniform(index + 1) * 200.0f - 140.0f));
}

struct State {
  GuardedTensor weight, gradient, m, v;
  std::vector<bf16> high;
  std::vector<int16_t> remainder;

  explicit State(int64_t count)
      : weight(DType::kF32, {count}),
        gradient(DType::kF32, {count}),
        m(DType::kF32, {count}),
        v(DType::kF32, {count}) {
    m.fill(0);
    v.fill(0);
    for (int64_t i = 0; i < count; ++i) weight.set(i, wild_value(1, i));
    for (int64_t i = 0; i < count; ++i) {
      const float master = weight.view().as<float>()[i];
      high.push_back(master_weight(master));
      remainder.push_back(master_remainder(master));
    }
  }
  void new_gradient(int64_t step) {
    for (int64_t i = 0; i < gradient.num_elements(); ++i) {
      gradient.set(i, wild_value(static_cast<uint64_t>(100 + step), i));
    }
  }
  void update_f32(const AdamWKernels& kernels, const AdamWScalars& scalars, ThreadPool& pool) {
    kernels.update_f32(weight.view().as<float>(), gradient.view().as<float>(), m.view().as<float>(),
                       v.view().as<float>(), weight.num_elements(), scalars, pool);
  }
  void update_bf16(const AdamWKernels& kernels, const AdamWScalars& scalars, ThreadPool& pool) {
    kernels.update_bf16(high.data(), remainder.data(), gradient.view().as<float>(), m.view().as<float>(),
                        v.view().as<float>(), weight.num_elements(), scalars, pool);
  }
  bool guards_intact() const {
    return weight.guards_intact() && gradient.guards_intact() && m.guards_intact() && v.guards_intact();
  }
};

TEST(MasterWeight, SplitsAndJoinsEveryUpperHalfExactly) {
  for (uint32_t high = 0; high <= 0xFFFF; ++high) {
    for (const uint32_t low : {0u, 1u, 0x7FFFu, 0x8000u, 0x8001u, 0xFFFFu}) {
      const float master = std::bit_cast<float>((high << 16) | low);
      if (std::isnan(master)) continue;
      const float joined = join_master(master_weight(master), master_remainder(master));
      ASSERT_EQ(std::bit_cast<uint32_t>(joined), (high << 16) | low);
    }
  }
}

TEST(MasterWeight, IsTheNearestBf16TiesAway) {
  const auto rounded = [](uint32_t bits) { return master_weight(std::bit_cast<float>(bits)).bits; };
  EXPECT_EQ(rounded(0x3F807FFF), 0x3F80);
  EXPECT_EQ(rounded(0x3F808000), 0x3F81);  // tie, rounded away from zero; to even would keep it
  EXPECT_EQ(rounded(0x3F80FFFF), 0x3F81);
  EXPECT_EQ(rounded(0xBF808000), 0xBF81);  // tie in a negative number
  EXPECT_EQ(rounded(0x3FFF8000), 0x4000);  // carry into the exponent
  EXPECT_EQ(rounded(0x00007FFF), 0x0000);  // subnormal
  EXPECT_EQ(rounded(0x00008000), 0x0001);
}

TEST(AdamW, FirstStepMovesEveryWeightByAboutTheLearningRate) {
  ThreadPool pool(1);
  for (const auto& implementation : adamw_table().usable()) {
    std::vector<float> w = {1, -2, 0.5f}, g = {10, -1e-3f, 3}, m(3), v(3);
    implementation.kernels.update_f32(w.data(), g.data(), m.data(), v.data(), 3,
                                      adamw_scalars(0.01, 0.9, 0.999, 1e-8, 0, 1, 1), pool);
    EXPECT_NEAR(w[0], 0.99, 1e-6) << describe(implementation);
    EXPECT_NEAR(w[1], -1.99, 1e-6) << describe(implementation);
    EXPECT_NEAR(w[2], 0.49, 1e-6) << describe(implementation);
  }
}

TEST(AdamW, FollowsTheFormulasInDouble) {
  ThreadPool pool(1);
  for (const auto& implementation : adamw_table().usable()) {
    const int64_t count = 50;
    GuardedTensor w(DType::kF32, {count}), g(DType::kF32, {count}), m(DType::kF32, {count}),
        v(DType::kF32, {count});
    w.fill_normal(1);
    m.fill(0);
    v.fill(0);
    std::vector<double> dw = w.values(), dm(count), dv(count);
    const double lr = 1e-2, b1 = 0.9, b2 = 0.95, eps = 1e-8, decay = 0.1, scale = 0.5;
    for (int64_t step = 1; step <= 20; ++step) {
      g.fill_normal(static_cast<uint64_t>(10 + step));
      for (size_t i = 0; i < count; ++i) {
        const double gradient = g[static_cast<int64_t>(i)] * scale;
        dw[i] *= 1 - lr * decay;
        dm[i] = b1 * dm[i] + (1 - b1) * gradient;
        dv[i] = b2 * dv[i] + (1 - b2) * gradient * gradient;
        const double t = static_cast<double>(step);
        dw[i] -=
            lr / (1 - std::pow(b1, t)) * dm[i] / (std::sqrt(dv[i]) / std::sqrt(1 - std::pow(b2, t)) + eps);
      }
      implementation.kernels.update_f32(w.view().as<float>(), g.view().as<float>(), m.view().as<float>(),
                                        v.view().as<float>(), count,
                                        adamw_scalars(lr, b1, b2, eps, decay, step, scale), pool);
    }
    // Per step: 3 roundings of |w| <= 4 and about 10 of a step of at most 10 lr; m and v forget old
    // roundings.
    const double bound = 20 * kFloatEps * (3 * 4 + 10 * 10 * lr);
    for (int64_t i = 0; i < count; ++i) {
      EXPECT_NEAR(w[i], dw[static_cast<size_t>(i)], bound) << describe(implementation) << " index " << i;
    }
  }
}

TEST(AdamW, EveryImplementationIsBitEqualToTheReference) {
  ThreadPool pool(2);
  const AdamWKernels reference = adamw_ref()[0].kernels;
  for (const auto& implementation : adamw_table().usable()) {
    for (const int64_t count : kCounts) {
      State expected(count), f32(count), half(count);
      for (int64_t step = 1; step <= 3; ++step) {
        for (State* state : {&expected, &f32, &half}) state->new_gradient(step);
        expected.update_f32(reference, some_scalars(step), pool);
        f32.update_f32(implementation.kernels, some_scalars(step), pool);
        half.update_bf16(implementation.kernels, some_scalars(step), pool);
      }
      const std::string context = fmt::format("{} count {}", describe(implementation), count);
      EXPECT_TRUE(f32.weight.bits() == expected.weight.bits()) << context;
      EXPECT_TRUE(f32.m.bits() == expected.m.bits()) << context;
      EXPECT_TRUE(f32.v.bits() == expected.v.bits()) << context;
      EXPECT_TRUE(half.m.bits() == expected.m.bits() && half.v.bits() == expected.v.bits()) << context;
      EXPECT_TRUE(f32.guards_intact() && half.guards_intact()) << context;
      for (int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(i);
        ASSERT_EQ(std::bit_cast<uint32_t>(join_master(half.high[at], half.remainder[at])),
                  std::bit_cast<uint32_t>(expected.weight.view().as<float>()[i]))
            << context << " index " << i;
      }
    }
  }
}

TEST(AdamW, Bf16RunEqualsFloat32RunOverManySteps) {
  ThreadPool pool(2);
  for (const auto& implementation : adamw_table().usable()) {
    State f32(777), half(777);
    for (int64_t step = 1; step <= 200; ++step) {
      f32.new_gradient(step);
      half.new_gradient(step);
      f32.update_f32(implementation.kernels, some_scalars(step), pool);
      half.update_bf16(implementation.kernels, some_scalars(step), pool);
    }
    for (size_t i = 0; i < 777; ++i) {
      const float master = f32.weight.view().as<float>()[i];
      ASSERT_EQ(std::bit_cast<uint32_t>(join_master(half.high[i], half.remainder[i])),
                std::bit_cast<uint32_t>(master))
          << describe(implementation) << " index " << i;
      ASSERT_EQ(half.high[i].bits, master_weight(master).bits);
    }
  }
}

TEST(AdamW, LargestFiniteMastersStayExactThroughBf16) {
  ThreadPool pool(1);
  for (const auto& implementation : adamw_table().usable()) {
    // With a zero gradient and no decay, every normal master must stay bit-identical.
    const std::vector<float> masters = {FLT_MAX,      -FLT_MAX,      FLT_MIN, -FLT_MIN,
                                        FLT_TRUE_MIN, -FLT_TRUE_MIN, 0.0f,    1.0f};
    std::vector<bf16> high;
    std::vector<int16_t> remainder;
    for (const float master : masters) {
      high.push_back(master_weight(master));
      remainder.push_back(master_remainder(master));
    }
    std::vector<float> g(masters.size()), m(masters.size()), v(masters.size());
    implementation.kernels.update_bf16(high.data(), remainder.data(), g.data(), m.data(), v.data(),
                                       std::ssize(masters), adamw_scalars(0.01, 0.9, 0.999, 1e-8, 0, 1, 1),
                                       pool);
    for (size_t i = 0; i < masters.size(); ++i) {
      const float expected = std::fpclassify(masters[i]) == FP_SUBNORMAL ? 0.0f : masters[i];
      EXPECT_EQ(join_master(high[i], remainder[i]), expected) << describe(implementation) << " index " << i;
    }
  }
}

// How moments are stored that are rounded: in blocks of so many elements and bytes.
struct HalfForm {
  static constexpr int64_t kBlock = 1, kBlockBytes = 2;
  static constexpr auto kUpdateF32 = &AdamWKernels::update_f32_half;
  static constexpr auto kUpdateBf16 = &AdamWKernels::update_bf16_half;
  static HalfMoments moments(std::byte* m, std::byte* v, int64_t first_element) {
    return {reinterpret_cast<bf16*>(m), reinterpret_cast<bf16*>(v), first_element};
  }
};
struct CodedForm {
  static constexpr int64_t kBlock = kCodeBlock, kBlockBytes = kCodeBlockBytes;
  static constexpr auto kUpdateF32 = &AdamWKernels::update_f32_8bit;
  static constexpr auto kUpdateBf16 = &AdamWKernels::update_bf16_8bit;
  static CodedMoments moments(std::byte* m, std::byte* v, int64_t first_element) {
    return {m, v, first_element};
  }
};

// Masters and moments of one array that is updated in parts. The moments are followed by guards.
template <typename Form>
struct RoundedState {
  static constexpr auto kGuard = std::byte{0xA5};
  std::vector<float> weight, gradient;
  std::vector<bf16> high;
  std::vector<int16_t> remainder;
  std::vector<std::byte> m, v;

  explicit RoundedState(int64_t count) : gradient(static_cast<size_t>(count)), m(size_of(count)), v(m) {
    for (std::vector<std::byte>* moment : {&m, &v}) moment->resize(moment->size() + 64, kGuard);
    for (int64_t i = 0; i < count; ++i) {
      weight.push_back(wild_value(1, i));
      high.push_back(master_weight(weight.back()));
      remainder.push_back(master_remainder(weight.back()));
    }
  }
  static size_t size_of(int64_t count) {
    return static_cast<size_t>((count + Form::kBlock - 1) / Form::kBlock * Form::kBlockBytes);
  }
  // Gradients of widely different sizes in a block; some are zero.
  void new_gradient(int64_t step) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = i % 5 == 2 ? 0 : wild_value(static_cast<uint64_t>(100 + step), static_cast<int64_t>(i));
    }
  }
  // Elements [begin, end), of which the first is `offset` + begin among all parameters.
  void update(const AdamWKernels& kernels, int64_t begin, int64_t end, int64_t offset, bool split,
              int64_t step, ThreadPool& pool) {
    const auto moments = Form::moments(&m[size_of(begin)], &v[size_of(begin)], offset + begin);
    if (split) {
      (kernels.*Form::kUpdateBf16)(high.data() + begin, remainder.data() + begin, gradient.data() + begin,
                                   moments, end - begin, some_scalars(step), pool);
    } else {
      (kernels.*Form::kUpdateF32)(weight.data() + begin, gradient.data() + begin, moments, end - begin,
                                  some_scalars(step), pool);
    }
  }
  std::vector<uint32_t> masters(bool split) const {
    std::vector<uint32_t> all;
    for (size_t i = 0; i < weight.size(); ++i) {
      all.push_back(std::bit_cast<uint32_t>(split ? join_master(high[i], remainder[i]) : weight[i]));
    }
    return all;
  }
};

template <typename Form>
class RoundedMoments : public testing::Test {};
using Forms = testing::Types<HalfForm, CodedForm>;
TYPED_TEST_SUITE(RoundedMoments, Forms);

TYPED_TEST(RoundedMoments, EveryImplementationIsBitEqualToTheReferenceInAnyBlocks) {
  ThreadPool pool(3);
  const AdamWKernels reference = adamw_ref()[0].kernels;
  for (const auto& implementation : adamw_table().usable()) {
    for (const bool split : {false, true}) {
      for (const int64_t count : {0, 1, 5, 15, 16, 31, 32, 33, 63, 64, 65, 95, 97, 161, 66'017}) {
        const int64_t offset = count * 977 * TypeParam::kBlock;
        const int64_t cut = count / 3 / TypeParam::kBlock * TypeParam::kBlock;
        RoundedState<TypeParam> expected(count), got(count);
        for (int64_t step = 1; step <= 3; ++step) {
          expected.new_gradient(step);
          got.new_gradient(step);
          expected.update(reference, 0, count, offset, split, step, pool);
          got.update(implementation.kernels, 0, cut, offset, split, step, pool);
          got.update(implementation.kernels, cut, count, offset, split, step, pool);
        }
        const std::string context = fmt::format("{} count {}", describe(implementation), count);
        EXPECT_TRUE(got.masters(split) == expected.masters(split)) << context;
        EXPECT_TRUE(got.m == expected.m && got.v == expected.v) << context;
        EXPECT_TRUE(got.m.back() == got.kGuard && got.v.back() == got.kGuard) << context;
      }
    }
  }
}

TEST(HalfMoments, FollowTheFloat32OnesOnAverage) {
  ThreadPool pool(2);
  const int64_t count = 50'000, num_steps = 100;
  std::vector<float> w(count), g(count, 1e-3f);
  std::vector<bf16> m(count), v(count);
  const AdamWKernels& kernels = adamw_table().chosen();
  double exact_m = 0, exact_v = 0;
  for (int64_t step = 1; step <= 2 * num_steps; ++step) {
    if (step == num_steps + 1) std::ranges::fill(g, 0.0f);  // from here on v falls by a thousandth a step
    const AdamWScalars scalars = adamw_scalars(1e-4, 0.9, 0.999, 1e-8, 0, step, 1);
    kernels.update_f32_half(w.data(), g.data(), {m.data(), v.data(), 0}, count, scalars, pool);
    const double gradient = static_cast<double>(g[0]);
    exact_m = 0.9 * exact_m + 0.1 * gradient;
    exact_v = 0.999 * exact_v + 0.001 * gradient * gradient;
  }
  double mean_m = 0, mean_v = 0;
  for (size_t i = 0; i < m.size(); ++i) {
    mean_m += static_cast<double>(to_float(m[i])) / static_cast<double>(count);
    mean_v += static_cast<double>(to_float(v[i])) / static_cast<double>(count);
  }
  // A rounding is off by up to 2^-7 of a value; the mean of `count` walks of so many steps by far less.
  EXPECT_NEAR(mean_v, exact_v, 1e-3 * exact_v);
  EXPECT_NEAR(mean_m, exact_m, 1e-3 * exact_m + 1e-9);
}

// A gradient that is not a number makes its weight one, and the moments of its block.
TEST(CodedMoments, ABlockThatIsNotFiniteStaysSo) {
  ThreadPool pool(1);
  for (const auto& implementation : adamw_table().usable()) {
    RoundedState<CodedForm> state(96);
    state.new_gradient(1);
    state.gradient[40] = std::bit_cast<float>(0xFFFFFFFFu);  // NaN with all bits
    state.update(implementation.kernels, 0, 96, 0, true, 1, pool);
    std::vector<float> m(96), v(96);
    read_codes(DType::kI8, state.m.data(), 0, m);
    read_codes(DType::kU8, state.v.data(), 0, v);
    for (size_t i = 0; i < 96; ++i) {
      EXPECT_EQ(std::isnan(m[i]) && std::isnan(v[i]), i / 32 == 1) << describe(implementation) << " " << i;
    }
    state.new_gradient(2);
    state.update(implementation.kernels, 0, 96, 0, true, 2, pool);
    EXPECT_TRUE(std::isnan(to_float(state.high[33]))) << describe(implementation);
    EXPECT_FALSE(std::isnan(to_float(state.high[64]))) << describe(implementation);
  }
}

TEST(CodedMoments, FollowTheFloat32OnesOnAverage) {
  ThreadPool pool(2);
  const int64_t count = 50'016, num_steps = 100;
  std::vector<float> w(count), g(count, 1e-3f);
  std::vector<std::byte> m_codes(count / kCodeBlock * kCodeBlockBytes), v_codes(m_codes);
  const AdamWKernels& kernels = adamw_table().chosen();
  double exact_m = 0, exact_v = 0;
  for (int64_t step = 1; step <= 2 * num_steps; ++step) {
    if (step == num_steps + 1) std::ranges::fill(g, 2e-4f);  // from here on both fall
    const AdamWScalars scalars = adamw_scalars(1e-4, 0.9, 0.999, 1e-8, 0, step, 1);
    kernels.update_f32_8bit(w.data(), g.data(), {m_codes.data(), v_codes.data(), 0}, count, scalars, pool);
    const double gradient = static_cast<double>(g[0]);
    exact_m = 0.9 * exact_m + 0.1 * gradient;
    exact_v = 0.999 * exact_v + 0.001 * gradient * gradient;
  }
  std::vector<float> m(count), v(count);
  read_codes(DType::kI8, m_codes.data(), 0, m);
  read_codes(DType::kU8, v_codes.data(), 0, v);
  double mean_m = 0, mean_root = 0;
  for (size_t i = 0; i < m.size(); ++i) {
    mean_m += static_cast<double>(m[i]) / static_cast<double>(count);
    mean_root += std::sqrt(static_cast<double>(v[i])) / static_cast<double>(count);
  }
  // m is rounded without bias. The root of v is, but it walks: the mean of v is above its root's square by
  // the variance, and so the root falls by half of that below the exact one.
  EXPECT_NEAR(mean_m, exact_m, 2e-3 * exact_m);
  EXPECT_NEAR(mean_root, std::sqrt(exact_v), 0.02 * std::sqrt(exact_v));
}

TEST(RoundingBits, AreUniformAndDifferFromStepToStep) {
  double sum = 0;
  int64_t num_equal = 0;
  const int64_t count = 20'000;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t bits = rounding_bits(7, i);
    sum += static_cast<double>(bits & 0xFFFF) + static_cast<double>(bits >> 16);
    num_equal += bits == rounding_bits(8, i) || bits == rounding_bits(7, i + 1);
  }
  EXPECT_NEAR(sum / static_cast<double>(2 * count) / 65'536, 0.5, 0.01);
  EXPECT_LE(num_equal, 1);
}

TEST(AdamW, DoesNotDependOnTheNumberOfThreads) {
  for (const auto& implementation : adamw_table().usable()) {
    expect_thread_independent(
        [&](ThreadPool& pool) {
          State state(100'001);
          state.new_gradient(1);
          state.update_f32(implementation.kernels, some_scalars(1), pool);
          std::vector<GuardedTensor> outputs = {state.weight, state.m, state.v};
          return outputs;
        },
        describe(implementation));
  }
}

}  // namespace
}  // namespace tessera
