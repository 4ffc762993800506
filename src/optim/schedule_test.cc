#include "optim/schedule.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr double kBase = 2e-3;

// lambda(s) = lr(s) / learning_rate at the given steps.
std::vector<double> factors(const ScheduleForm& form, int64_t w, int64_t T,
                            const std::vector<int64_t>& steps) {
  const auto schedule = make_schedule({form, kBase, w, T});
  std::vector<double> out;
  for (const int64_t s : steps) out.push_back(schedule->learning_rate(s) / kBase);
  return out;
}

// Every value within 1e-12 of one computed by hand from the formulas in transformers/optimization.py.
void expect_factors(const ScheduleForm& form, int64_t w, int64_t T, const std::vector<int64_t>& steps,
                    const std::vector<double>& expected) {
  ASSERT_EQ(steps.size(), expected.size());
  const std::vector<double> found = factors(form, w, T, steps);
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-12)
        << word_of(schedule_type(form)) << " w=" << w << " T=" << T << " s=" << steps[i];
  }
}

std::string refusal(const ScheduleOptions& options) {
  try {
    make_schedule(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadConfig) << error.what();
    return error.what();
  }
  ADD_FAILURE() << word_of(schedule_type(options.form)) << " was accepted";
  return "";
}

const double kHalfRoot = std::sqrt(0.5);  // cos(pi / 4)

TEST(LinearSchedule, WarmsUpThenFallsToZeroAndStaysThere) {
  expect_factors(LinearSchedule(), 4, 12, {0, 1, 3, 4, 5, 8, 11, 12, 13, 100},
                 {0, 0.25, 0.75, 1, 0.875, 0.5, 0.125, 0, 0, 0});
}

TEST(LinearSchedule, StartsAtTheFullRateWithoutWarmup) {
  expect_factors(LinearSchedule(), 0, 4, {0, 1, 4}, {1, 0.75, 0});
}

TEST(LinearSchedule, DividesByOneWhenWarmupIsTheWholeRun) {
  expect_factors(LinearSchedule(), 4, 4, {0, 3, 4, 5}, {0, 0.75, 0, 0});
  expect_factors(LinearSchedule(), 6, 4, {3, 5, 6}, {0.5, 5.0 / 6, 0});  // warm-up longer than the run
}

TEST(CosineSchedule, FollowsHalfACosineByDefault) {
  expect_factors(CosineSchedule(), 2, 10, {0, 1, 2, 4, 6, 8, 10},
                 {0, 0.5, 1, 0.5 * (1 + kHalfRoot), 0.5, 0.5 * (1 - kHalfRoot), 0});
}

TEST(CosineSchedule, RisesAgainWithAFullCycleAndBeyondTheEnd) {
  expect_factors(CosineSchedule{.num_cycles = 1}, 0, 8, {0, 2, 4, 6, 8}, {1, 0.5, 0, 0.5, 1});
  expect_factors(CosineSchedule(), 0, 4, {6, 8}, {0.5, 1});  // the formula is not cut at T
}

TEST(CosineWithRestartsSchedule, RestartsAtEachCycleAndEndsAtZero) {
  expect_factors(CosineWithRestarts{.num_cycles = 2}, 2, 10, {1, 2, 4, 6, 8, 9, 10, 11},
                 {0.5, 1, 0.5, 1, 0.5, 0.5 * (1 - kHalfRoot), 0, 0});
  expect_factors(CosineWithRestarts(), 0, 4, {0, 2, 4}, {1, 0.5, 0});
}

TEST(PolynomialSchedule, EndsAtLrEnd) {
  expect_factors(PolynomialSchedule{.lr_end = 0.0002, .power = 2}, 2, 6, {0, 1, 2, 4, 6, 7},
                 {0, 0.5, 1, (0.0018 * 0.25 + 0.0002) / kBase, 0.1, 0.1});
  expect_factors(PolynomialSchedule(), 0, 4, {2, 4, 9},
                 {((kBase - 1e-7) * 0.5 + 1e-7) / kBase, 1e-7 / kBase, 1e-7 / kBase});
  expect_factors(PolynomialSchedule(), 4, 4, {3, 4}, {0.75, 1e-7 / kBase});
}

TEST(PolynomialSchedule, RefusesAnEndAboveTheStart) {
  EXPECT_THAT(refusal({PolynomialSchedule{.lr_end = 0.1}, kBase, 0, 4}),
              HasSubstr("lr_end 0.1 must be below"));
}

TEST(ConstantSchedules, DifferInWarmupOnly) {
  expect_factors(ConstantSchedule(), 4, 8, {0, 3, 4, 99}, {1, 1, 1, 1});
  expect_factors(ConstantWithWarmup(), 4, 8, {0, 3, 4, 99}, {0, 0.75, 1, 1});
}

TEST(InverseSqrtSchedule, TakesWarmupAsTimescale) {
  expect_factors(InverseSqrtSchedule(), 4, 100, {0, 2, 4, 16, 64}, {0, 0.5, 1, 0.5, 0.25});
  expect_factors(InverseSqrtSchedule(), 0, 100, {0, 30000}, {1, 0.5});  // 10000 without warm-up
  expect_factors(InverseSqrtSchedule{.timescale = 9}, 4, 100, {4, 31}, {1, 0.5});
}

TEST(CosineWithMinLrSchedule, EndsAtTheMinimum) {
  expect_factors(CosineWithMinLr{.lowest = {0.0002, false}}, 2, 10, {1, 2, 6, 10}, {0.5, 1, 0.55, 0.1});
  expect_factors(CosineWithMinLr{.lowest = {0.2}}, 0, 8, {0, 4, 8}, {1, 0.6, 0.2});
}

TEST(CosineWarmupWithMinLrSchedule, CountsFromStepOne) {
  expect_factors(CosineWarmupWithMinLr{.lowest = {0.1}}, 4, 12, {0, 3, 4, 7, 11},
                 {0.25, 1, 0.5 * (1 + std::cos(M_PI / 8)) * 0.9 + 0.1, 0.55, 0.1});
  expect_factors(CosineWarmupWithMinLr{.lowest = {0.1}, .warmup_lr_rate = 0.4}, 4, 12, {0, 1, 3, 7},
                 {0.4, 0.6, 1, 0.55});
  expect_factors(CosineWarmupWithMinLr{.lowest = {0.1}, .warmup_lr_rate = 0.4}, 1, 9, {0}, {0.4});
}

TEST(WarmupStableDecaySchedule, HasThreePhases) {
  expect_factors(WarmupStableDecay{.num_decay_steps = 4}, 2, 10, {0, 1, 2, 5, 6, 7, 8, 10, 11},
                 {0, 0.5, 1, 1, 1, 0.5 * (1 + kHalfRoot), 0.5, 0, 0});
}

TEST(WarmupStableDecaySchedule, HonoursEveryShape) {
  expect_factors(WarmupStableDecay{.num_decay_steps = 4,
                                   .warmup = RateCurve::kCosine,
                                   .decay = RateCurve::kLinear,
                                   .min_lr_ratio = 0.2},
                 4, 12, {0, 1, 2, 4, 8, 9, 11, 12},
                 {0.2, 0.5 * (1 - kHalfRoot) * 0.8 + 0.2, 0.6, 1, 1, 0.8, 0.4, 0.2});
  expect_factors(WarmupStableDecay{.num_decay_steps = 4,
                                   .num_stable_steps = 1,
                                   .warmup = RateCurve::kOneMinusSqrt,
                                   .decay = RateCurve::kOneMinusSqrt},
                 4, 12, {0, 3, 4, 5, 6, 9}, {0, 0.5, 1, 1, 0.5, 0});
  expect_factors(WarmupStableDecay{.num_decay_steps = 4, .num_stable_steps = 0, .num_cycles = 1}, 0, 12,
                 {0, 1, 2, 3}, {1, 0.5, 0, 0.5});
}

TEST(ReduceOnPlateauSchedule, ReducesAfterMoreThanPatienceBadEvaluations) {
  const auto schedule = make_schedule({ReduceLrOnPlateau{.factor = 0.5, .patience = 1}, kBase, 3, 10});
  EXPECT_EQ(schedule->learning_rate(0), kBase);  // no warm-up
  for (const double metric : {2.0, 1.0, 1.0}) schedule->observe_metric(metric, false);
  EXPECT_EQ(schedule->learning_rate(5), kBase);
  schedule->observe_metric(0.99995, false);  // better by less than the threshold of 1e-4: the second bad one
  EXPECT_EQ(schedule->learning_rate(6), kBase / 2);
  schedule->observe_metric(0.5, false);
  schedule->observe_metric(0.6, false);
  EXPECT_EQ(schedule->learning_rate(7), kBase / 2);
}

TEST(ReduceOnPlateauSchedule, HonoursCooldownFloorAndDirection) {
  const auto schedule = make_schedule(
      {ReduceLrOnPlateau{.factor = 0.5, .patience = 0, .cooldown = 2, .min_lr = 0.0015}, kBase, 0, 10});
  schedule->observe_metric(1, true);
  schedule->observe_metric(0.5, true);  // worse when greater is better
  EXPECT_EQ(schedule->learning_rate(1), 0.0015);
  const auto again = make_schedule(
      {ReduceLrOnPlateau{.greater_is_better = false, .factor = 0.5, .patience = 0, .cooldown = 2}, kBase, 0,
       10});
  again->observe_metric(1, true);  // mode is given: lower is better
  for (const double expected : {kBase / 2, kBase / 2, kBase / 2, kBase / 4}) {
    again->observe_metric(2, true);
    EXPECT_EQ(again->learning_rate(1), expected);
  }
}

TEST(ReduceOnPlateauSchedule, GoesOnFromItsState) {
  const ScheduleOptions options = {ReduceLrOnPlateau{.factor = 0.5, .patience = 1, .cooldown = 1}, kBase, 0,
                                   10};
  const std::vector<double> metrics = {2, 1, 3, 3, 3, 0.5, 4, 4, 4, 4};
  for (size_t stop = 0; stop < metrics.size(); ++stop) {
    const auto whole = make_schedule(options), first = make_schedule(options),
               second = make_schedule(options);
    for (size_t i = 0; i < stop; ++i) first->observe_metric(metrics[i], false);
    ASSERT_TRUE(first->plateau());
    second->restore(*first->plateau());
    for (size_t i = 0; i < metrics.size(); ++i) {
      whole->observe_metric(metrics[i], false);
      if (i < stop) continue;
      second->observe_metric(metrics[i], false);
      EXPECT_EQ(second->learning_rate(0), whole->learning_rate(0)) << "metric " << i << ", stop " << stop;
    }
  }
  EXPECT_FALSE(make_schedule({LinearSchedule(), kBase, 0, 10})->plateau());
}

TEST(CosineWithMinLrSchedule, NeedsALearningRateForARateOfItsOwn) {
  EXPECT_THAT(refusal({CosineWithMinLr{.lowest = {1e-5, false}}, 0, 0, 4}), HasSubstr("above 0, found 0"));
}

TEST(MakeSchedule, KnowsEveryType) {
  for (const auto& [word, type] : choice_words(ScheduleType())) {
    ScheduleForm form = schedule_of(type);
    EXPECT_EQ(schedule_type(form), type);
    if (auto* one_cycle = std::get_if<OneCycle>(&form)) one_cycle->max_lr = 1e-3;
    const auto schedule = make_schedule({form, kBase, 2, 10});
    for (int64_t s = 0; s < 15; ++s) {
      EXPECT_GE(schedule->learning_rate(s), 0) << word << " s=" << s;
      EXPECT_LE(schedule->learning_rate(s), kBase * (1 + 1e-12)) << word << " s=" << s;
    }
  }
}

}  // namespace
}  // namespace tessera
