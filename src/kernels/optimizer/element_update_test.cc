#include <gtest/gtest.h>

#include <cfloat>

#include "kernels/block_code/block_code.h"
#include "kernels/optimizer/element_update_impl.h"
#include "kernels/rounding_bits.h"
#include "support/kernel_test_util.h"

namespace tessera {
namespace {

UpdateStep some_step(int64_t step) {
  return {.step = step,
          .learning_rate = 3e-3,
          .beta1 = 0.9,
          .beta2 = 0.95,
          .epsilon = 1e-8,
          .weight_decay = 0.1,
          .gradient_scale = 0.25};
}

// Magnitudes from subnormal to large, both signs.
float wild_value(uint64_t seed, int64_t i) {
  const CounterRng rng(seed, 1);
  const auto index = static_cast<uint64_t>(2 * i);
  return rng.normal(index) * std::exp2(std::floor(rng.uniform(index + 1) * 200.0f - 140.0f));
}

int64_t block_of(MomentForm form) { return form == MomentForm::kCodes ? kCodeBlock : 1; }
size_t bytes_of(MomentForm form, int64_t count) {
  if (form == MomentForm::kCodes)
    return static_cast<size_t>((count + kCodeBlock - 1) / kCodeBlock * kCodeBlockBytes);
  return static_cast<size_t>(count * (form == MomentForm::kF32 ? 4 : 2));
}

// Weights (split: in BF16 with remainders), a gradient and moments, which are followed by guards.
template <class Rule>
struct State {
  static constexpr size_t kNumMoments = Rule::kMoments.size();
  static constexpr auto kGuard = std::byte{0xA5};
  using Kernels = UpdateKernels<Rule>;

  MomentForm form;
  bool split;
  std::vector<float> weight, gradient;
  std::vector<bf16> high;
  std::vector<int16_t> remainder;
  std::vector<std::byte> moments[kNumMoments];

  State(int64_t count, MomentForm form_of_moments, bool is_split)
      : form(form_of_moments), split(is_split), gradient(static_cast<size_t>(count)) {
    for (std::vector<std::byte>& moment : moments) {
      moment.resize(bytes_of(form, count));
      moment.resize(moment.size() + 64, kGuard);
    }
    for (int64_t i = 0; i < count; ++i) set_weight(wild_value(1, i));
  }
  State(const std::vector<float>& weights, MomentForm form_of_moments, bool is_split)
      : State(0, form_of_moments, is_split) {
    gradient.resize(weights.size());
    for (std::vector<std::byte>& moment : moments) moment.assign(bytes_of(form, std::ssize(weights)), {});
    for (const float value : weights) set_weight(value);
  }
  void set_weight(float value) {
    weight.push_back(value);
    high.push_back(master_weight(value));
    remainder.push_back(master_remainder(value));
  }
  // Gradients of widely different sizes in a block; some are zero.
  void new_gradient(int64_t step) {
    for (size_t i = 0; i < gradient.size(); ++i) {
      gradient[i] = i % 5 == 2 ? 0 : wild_value(static_cast<uint64_t>(100 + step), static_cast<int64_t>(i));
    }
  }
  // Elements [begin, end); element 0 is number `offset` among all parameters.
  void update(const Kernels& kernels, const UpdateStep& step, ThreadPool& pool, int64_t begin, int64_t end,
              int64_t offset = 0) {
    std::byte* state[kNumMoments];
    for (size_t k = 0; k < kNumMoments; ++k) state[k] = moments[k].data() + bytes_of(form, begin);
    const int64_t count = end - begin;
    OptimizerBlock block = {.weights = TensorView(weight.data() + begin, DType::kF32, {count}),
                            .gradient = {gradient.data() + begin, static_cast<size_t>(count)},
                            .state = state,
                            .first_element = offset + begin};
    if (split) {
      block.weights = TensorView(high.data() + begin, DType::kBF16, {count});
      block.remainders = remainder.data() + begin;
    }
    kernels.update(block, form, Rule::scalars(step), pool);
  }
  void update(const Kernels& kernels, const UpdateStep& step, ThreadPool& pool) {
    update(kernels, step, pool, 0, std::ssize(gradient));
  }
  float master(size_t i) const { return split ? join_master(high[i], remainder[i]) : weight[i]; }
  std::vector<uint32_t> masters() const {
    std::vector<uint32_t> all;
    for (size_t i = 0; i < weight.size(); ++i) all.push_back(std::bit_cast<uint32_t>(master(i)));
    return all;
  }
  std::vector<float> values(size_t moment) const {
    std::vector<float> all(gradient.size());
    const DType dtype = moment_dtype(form, Rule::kMoments[moment]);
    if (is_block_code(dtype)) read_codes(dtype, moments[moment].data(), 0, all);
    for (size_t i = 0; i < all.size() && !is_block_code(dtype); ++i) {
      all[i] = dtype == DType::kF32 ? reinterpret_cast<const float*>(moments[moment].data())[i]
                                    : to_float(reinterpret_cast<const bf16*>(moments[moment].data())[i]);
    }
    return all;
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

template <class Rule>
class ElementUpdate : public testing::Test {};
using Rules = testing::Types<AdamWRule, LionRule>;
TYPED_TEST_SUITE(ElementUpdate, Rules);

TYPED_TEST(ElementUpdate, EveryImplementationIsBitEqualToTheReferenceInAnyBlocks) {
  ThreadPool pool(3);
  const auto reference = update_ref<TypeParam>()[0].kernels;
  for (const auto& implementation : update_table<TypeParam>().usable()) {
    for (const MomentForm form : {MomentForm::kF32, MomentForm::kBF16, MomentForm::kCodes}) {
      for (const int64_t count :
           {0, 1, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 95, 97, 161, 66'017}) {
        const int64_t offset = count * 977 * block_of(form);
        const int64_t cut = count / 3 / block_of(form) * block_of(form);
        State<TypeParam> expected(count, form, false), whole(count, form, false), split(count, form, true);
        for (int64_t step = 1; step <= 3; ++step) {
          for (State<TypeParam>* state : {&expected, &whole, &split}) state->new_gradient(step);
          expected.update(reference, some_step(step), pool, 0, count, offset);
          for (State<TypeParam>* state : {&whole, &split}) {
            state->update(implementation.kernels, some_step(step), pool, 0, cut, offset);
            state->update(implementation.kernels, some_step(step), pool, cut, count, offset);
          }
        }
        const std::string context =
            fmt::format("{} form {} count {}", describe(implementation), static_cast<int>(form), count);
        for (const State<TypeParam>* state : {&whole, &split}) {
          EXPECT_TRUE(state->masters() == expected.masters()) << context;
          for (size_t k = 0; k < TypeParam::kMoments.size(); ++k) {
            EXPECT_TRUE(state->moments[k] == expected.moments[k]) << context;
            EXPECT_TRUE(state->moments[k].back() == state->kGuard) << context;
          }
        }
      }
    }
  }
}

TYPED_TEST(ElementUpdate, Bf16RunEqualsFloat32RunOverManySteps) {
  ThreadPool pool(2);
  for (const auto& implementation : update_table<TypeParam>().usable()) {
    State<TypeParam> f32(777, MomentForm::kF32, false), split(777, MomentForm::kF32, true);
    for (int64_t step = 1; step <= 200; ++step) {
      for (State<TypeParam>* state : {&f32, &split}) {
        state->new_gradient(step);
        state->update(implementation.kernels, some_step(step), pool);
      }
    }
    ASSERT_EQ(split.masters(), f32.masters()) << describe(implementation);
    for (size_t i = 0; i < 777; ++i) ASSERT_EQ(split.high[i].bits, master_weight(f32.weight[i]).bits);
  }
}

TYPED_TEST(ElementUpdate, LargestFiniteMastersStayExactThroughBf16) {
  ThreadPool pool(1);
  for (const auto& implementation : update_table<TypeParam>().usable()) {
    // A zero gradient without decay must leave every normal master bit-identical.
    const std::vector<float> masters = {FLT_MAX,      -FLT_MAX,      FLT_MIN, -FLT_MIN,
                                        FLT_TRUE_MIN, -FLT_TRUE_MIN, 0.0f,    1.0f};
    State<TypeParam> state(masters, MomentForm::kF32, true);
    UpdateStep step = some_step(1);
    step.weight_decay = 0;
    state.update(implementation.kernels, step, pool);
    for (size_t i = 0; i < masters.size(); ++i) {
      const float expected = std::fpclassify(masters[i]) == FP_SUBNORMAL ? 0.0f : masters[i];
      EXPECT_EQ(state.master(i), expected) << describe(implementation) << " index " << i;
    }
  }
}

// A gradient that is not a number makes the moments of its block ones.
TYPED_TEST(ElementUpdate, ABlockOfCodesThatIsNotFiniteStaysSo) {
  ThreadPool pool(1);
  for (const auto& implementation : update_table<TypeParam>().usable()) {
    State<TypeParam> state(96, MomentForm::kCodes, true);
    state.new_gradient(1);
    state.gradient[40] = std::bit_cast<float>(0xFFFFFFFFu);  // NaN with all bits
    state.update(implementation.kernels, some_step(1), pool);
    for (size_t k = 0; k < TypeParam::kMoments.size(); ++k) {
      const std::vector<float> values = state.values(k);
      for (size_t i = 0; i < 96; ++i) {
        EXPECT_EQ(std::isnan(values[i]), i / 32 == 1) << describe(implementation) << " " << i;
      }
    }
    state.new_gradient(2);
    state.update(implementation.kernels, some_step(2), pool);
    EXPECT_TRUE(std::isnan(to_float(state.high[33]))) << describe(implementation);
    EXPECT_FALSE(std::isnan(to_float(state.high[64]))) << describe(implementation);
  }
}

TYPED_TEST(ElementUpdate, DoesNotDependOnTheNumberOfThreads) {
  for (const auto& implementation : update_table<TypeParam>().usable()) {
    expect_thread_independent(
        [&](ThreadPool& pool) {
          State<TypeParam> state(100'001, MomentForm::kF32, false);
          state.new_gradient(1);
          state.update(implementation.kernels, some_step(1), pool);
          std::vector<GuardedTensor> outputs;
          for (const std::vector<float>& values : {state.weight, state.values(0)}) {
            outputs.emplace_back(DType::kF32, Shape{100'001});
            for (int64_t i = 0; i < 100'001; ++i) outputs.back().set(i, values[static_cast<size_t>(i)]);
          }
          return outputs;
        },
        describe(implementation));
  }
}

TEST(AdamW, FirstStepMovesEveryWeightByAboutTheLearningRate) {
  ThreadPool pool(1);
  for (const auto& implementation : update_table<AdamWRule>().usable()) {
    State<AdamWRule> state({1, -2, 0.5f}, MomentForm::kF32, false);
    state.gradient = {10, -1e-3f, 3};
    state.update(implementation.kernels, {1, 0.01, 0.9, 0.999, 1e-8, 0}, pool);
    EXPECT_NEAR(state.weight[0], 0.99, 1e-6) << describe(implementation);
    EXPECT_NEAR(state.weight[1], -1.99, 1e-6) << describe(implementation);
    EXPECT_NEAR(state.weight[2], 0.49, 1e-6) << describe(implementation);
  }
}

// Runs 20 steps and calls formula(step, gradient, i) for each element beside them.
template <class Rule, class Formula>
State<Rule> follow(const UpdateKernels<Rule>& kernels, UpdateStep step, const std::vector<float>& weights,
                   const Formula& formula) {
  ThreadPool pool(1);
  State<Rule> state(weights, MomentForm::kF32, false);
  for (step.step = 1; step.step <= 20; ++step.step) {
    const CounterRng rng(static_cast<uint64_t>(10 + step.step), 1);
    for (size_t i = 0; i < weights.size(); ++i) {
      // Every third gradient is zero, so that moments change their sign and meet zero.
      state.gradient[i] = i % 3 == 0 ? 0.0f : rng.normal(i);
      formula(static_cast<double>(step.step), step.gradient_scale * static_cast<double>(state.gradient[i]),
              i);
    }
    state.update(kernels, step, pool);
  }
  return state;
}

std::vector<float> normal_values(size_t count) {
  std::vector<float> values;
  for (size_t i = 0; i < count; ++i) values.push_back(CounterRng(1, 1).normal(i));
  return values;
}

TEST(AdamW, FollowsTheFormulasInDouble) {
  const double lr = 1e-2, b1 = 0.9, b2 = 0.95, eps = 1e-8, decay = 0.1;
  const std::vector<float> weights = normal_values(50);
  for (const auto& implementation : update_table<AdamWRule>().usable()) {
    std::vector<double> w(weights.begin(), weights.end()), m(w.size()), v(w.size());
    const State<AdamWRule> state =
        follow<AdamWRule>(implementation.kernels, {0, lr, b1, b2, eps, decay, 0.5}, weights,
                          [&](double t, double gradient, size_t i) {
                            w[i] *= 1 - lr * decay;
                            m[i] = b1 * m[i] + (1 - b1) * gradient;
                            v[i] = b2 * v[i] + (1 - b2) * gradient * gradient;
                            w[i] -= lr / (1 - std::pow(b1, t)) * m[i] /
                                    (std::sqrt(v[i]) / std::sqrt(1 - std::pow(b2, t)) + eps);
                          });
    // Per step: 3 roundings of |w| <= 4 and about 10 of a step of at most 10 lr; m and v forget old
    // roundings.
    const double bound = 20 * kFloatEps * (3 * 4 + 10 * 10 * lr);
    for (size_t i = 0; i < w.size(); ++i) {
      EXPECT_NEAR(state.weight[i], w[i], bound) << describe(implementation) << " index " << i;
    }
  }
}

TEST(Lion, FollowsTheFormulasInDouble) {
  const double lr = 3e-3, decay = 0.1;
  const std::vector<float> weights = normal_values(60);
  for (const auto& implementation : update_table<LionRule>().usable()) {
    std::vector<double> w(weights.begin(), weights.end()), m(w.size());
    const State<LionRule> state =
        follow<LionRule>(implementation.kernels, {0, lr, 0.9, 0.99, 0, decay, 0.25}, weights,
                         [&](double /*t*/, double gradient, size_t i) {
                           const double direction = 0.9 * m[i] + 0.1 * gradient;
                           w[i] = w[i] * (1 - lr * decay) - lr * (direction > 0 ? 1 : direction < 0 ? -1 : 0);
                           m[i] = 0.99 * m[i] + 0.01 * gradient;
                         });
    const std::vector<float> moments = state.values(0);
    for (size_t i = 0; i < w.size(); ++i) {
      EXPECT_NEAR(state.weight[i], w[i], 1e-5) << describe(implementation) << " index " << i;
      EXPECT_NEAR(moments[i], m[i], 1e-6) << describe(implementation) << " index " << i;
    }
  }
}

// The means of 50,016 elements' moments and of the roots of their second ones, after 100 steps with one
// gradient and 100 with another.
struct MeanMoments {
  double m = 0, exact_m = 0, v = 0, exact_v = 0, root = 0;

  MeanMoments(MomentForm form, float second_gradient) {
    ThreadPool pool(2);
    State<AdamWRule> state(std::vector<float>(50'016), form, false);
    std::ranges::fill(state.gradient, 1e-3f);
    for (int64_t step = 1; step <= 200; ++step) {
      if (step == 101) std::ranges::fill(state.gradient, second_gradient);
      state.update(update_table<AdamWRule>().chosen(), {step, 1e-4, 0.9, 0.999, 1e-8, 0}, pool);
      const auto gradient = static_cast<double>(state.gradient[0]);
      exact_m = 0.9 * exact_m + 0.1 * gradient;
      exact_v = 0.999 * exact_v + 0.001 * gradient * gradient;
    }
    const std::vector<float> first = state.values(0), second = state.values(1);
    for (size_t i = 0; i < first.size(); ++i) {
      m += static_cast<double>(first[i]) / 50'016;
      v += static_cast<double>(second[i]) / 50'016;
      root += std::sqrt(static_cast<double>(second[i])) / 50'016;
    }
  }
};

TEST(AdamW, HalfMomentsFollowTheFloat32OnesOnAverage) {
  const MeanMoments means(MomentForm::kBF16, 0.0f);  // v falls by a thousandth a step
  // One rounding is off by up to 2^-7 of a value, the mean over all walks and steps by far less.
  EXPECT_NEAR(means.v, means.exact_v, 1e-3 * means.exact_v);
  EXPECT_NEAR(means.m, means.exact_m, 1e-3 * means.exact_m + 1e-9);
}

TEST(AdamW, CodedMomentsFollowTheFloat32OnesOnAverage) {
  const MeanMoments means(MomentForm::kCodes, 2e-4f);
  // m is rounded without bias. The root of v is, but it walks: the mean of v is above its root's square by
  // the variance, and so the root falls by half of that below the exact one.
  EXPECT_NEAR(means.m, means.exact_m, 2e-3 * means.exact_m);
  EXPECT_NEAR(means.root, std::sqrt(means.exact_v), 0.02 * std::sqrt(means.exact_v));
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

}  // namespace
}  // namespace tessera
