// Expected values are computed by hand from deepspeed/runtime/lr_schedules.py; i = step - 1.
#include "optim/schedule.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/error.h"

namespace tessera {
namespace {

constexpr double kRate = 2e-3;
constexpr int64_t kRunWarmup = 4;
constexpr int64_t kRunSteps = 12;

std::unique_ptr<Schedule> make(const ScheduleForm& form) {
  return make_schedule({form, kRate, kRunWarmup, kRunSteps});
}

void expect_rates(const ScheduleForm& form, const std::vector<int64_t>& steps,
                  const std::vector<double>& expected) {
  ASSERT_EQ(steps.size(), expected.size());
  const auto schedule = make(form);
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_NEAR(schedule->learning_rate(steps[i]), expected[i], 1e-15)
        << word_of(schedule_type(form)) << " step " << steps[i];
  }
}

// W = 4: ln(i + 1) / ln 4 is 0, 1/2, ln 3 / ln 4, 1 for i = 0 to 3.
TEST(DeepSpeedWarmupLR, RisesWithTheLogarithmAndStays) {
  const double third = 1e-3 * std::log(3) / std::log(4);
  expect_rates(WarmupLR{.warmup = {4}, .max_lr = 1e-3}, {0, 1, 2, 3, 4, 5, 1000},
               {0, 0, 0.5e-3, third, 1e-3, 1e-3, 1e-3});
}

TEST(DeepSpeedWarmupLR, RisesLinearlyFromItsMinimum) {
  expect_rates(WarmupLR{.warmup = {4, false}, .min_lr = 1e-4, .max_lr = 5e-4}, {0, 1, 2, 3, 4, 5},
               {1e-4, 1e-4, 2e-4, 3e-4, 4e-4, 5e-4});
}

TEST(DeepSpeedWarmupLR, DefaultsAreTheLearningRateAndThousandSteps) {
  expect_rates(WarmupLR(), {0, 1, 2, 1000, 1001}, {0, 0, kRate * std::log(2) / std::log(1000), kRate, kRate});
}

TEST(DeepSpeedWarmupLR, TakesAtLeastTwoSteps) {
  expect_rates(WarmupLR{.warmup = {0}}, {0, 1, 2, 3}, {0, 0, kRate, kRate});
}

TEST(DeepSpeedWarmupLR, AutoIsWhatTheRunHas) {
  expect_rates(WarmupLR{.warmup = {std::nullopt, false}, .max_lr = std::nullopt}, {0, 1, 2, 5},
               {0, 0, kRate / 4, kRate});
}

TEST(DeepSpeedWarmupDecayLR, FallsLinearlyToItsMinimum) {
  expect_rates(WarmupDecayLR{.warmup = {4, false}, .max_lr = 8e-4, .total_steps = 12},
               {0, 1, 2, 4, 5, 6, 9, 12, 13, 14}, {0, 0, 2e-4, 6e-4, 8e-4, 7e-4, 4e-4, 1e-4, 0, 0});
  expect_rates(WarmupDecayLR{.warmup = {4}, .min_lr = 2e-4, .max_lr = 1e-3, .total_steps = 12},
               {0, 5, 9, 13, 99}, {2e-4, 1e-3, 6e-4, 2e-4, 2e-4});
}

TEST(DeepSpeedWarmupDecayLR, HighestRateIsOneThousandthUnlessGiven) {
  expect_rates(WarmupDecayLR{.warmup = {std::nullopt}, .total_steps = std::nullopt}, {5, 9, 13},
               {1e-3, 0.5e-3, 0});
}

TEST(DeepSpeedWarmupDecayLR, TotalWithinTheWarmupDividesByOne) {
  expect_rates(WarmupDecayLR{.warmup = {4}, .max_lr = 1e-3, .total_steps = 3}, {4, 5},
               {1e-3 * std::log(4) / std::log(4), 0});
}

// W = 4, T = 12: progress (i - 3) / 8.
TEST(DeepSpeedWarmupCosineLR, FollowsTheCosineDownToItsRatio) {
  const auto cosine = [](double progress) { return 0.5 * (1 + std::cos(M_PI * progress)); };
  expect_rates(WarmupCosineLR{.warmup = {4, false}, .total_steps = 12, .first_ratio = 0.2, .last_ratio = 0.1},
               {0, 1, 2, 5, 8, 12, 13, 50},
               {0, kRate * 0.2, kRate * 0.4, kRate * (0.1 + 0.9 * cosine(1.0 / 8)), kRate * 0.55, kRate * 0.1,
                kRate * 0.1, kRate * 0.1});
}

TEST(DeepSpeedWarmupCosineLR, DefaultsAreZeroAndOneTenThousandth) {
  expect_rates(WarmupCosineLR{.warmup = {4}, .total_steps = 12}, {1, 2, 12}, {0, kRate * 0.5, kRate * 1e-4});
}

TEST(DeepSpeedLRRangeTest, GrowsContinuouslyOrInStairs) {
  LRRangeTest form = {.min_lr = 1e-4, .step_size = 4, .step_rate = 2};
  expect_rates(form, {0, 1, 2, 4, 8}, {1e-4, 1.5e-4, 2e-4, 3e-4, 5e-4});
  form.is_staircase = true;
  expect_rates(form, {0, 3, 4, 7, 8}, {1e-4, 1e-4, 3e-4, 3e-4, 5e-4});
  expect_rates(LRRangeTest(), {0, 2000}, {1e-3, 2e-3});
}

TEST(DeepSpeedOneCycle, RisesFallsAndDecays) {
  expect_rates(OneCycle{.min_lr = 1e-4,
                        .max_lr = 5e-4,
                        .decay_lr_rate = 1,
                        .first_size = 4,
                        .second_size = 2,
                        .decay_step_size = 2},
               {0, 1, 2, 4, 5, 6, 7, 8, 10},
               {1e-4, 2e-4, 3e-4, 5e-4, 3e-4, 1e-4, 1e-4 / 1.5, 1e-4 / 2, 1e-4 / 3});
}

TEST(DeepSpeedOneCycle, StaysAtItsMinimumWithoutDecay) {
  expect_rates(OneCycle{.min_lr = 1e-4, .max_lr = 5e-4, .first_size = 2, .second_size = 2},
               {0, 2, 3, 4, 5, 100}, {1e-4, 5e-4, 3e-4, 1e-4, 1e-4, 1e-4});
}

// The rates of DeepSpeed 0.19.8.
TEST(DeepSpeedOneCycle, StairsHoldTheRateAndTheMomentum) {
  OneCycle form = {.min_lr = 1, .max_lr = 5, .first_size = 4, .second_size = 6, .first_stairs = 2};
  const std::vector<int64_t> steps = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const double high = 11.0 / 3, low = 7.0 / 3;
  form.second_stairs = 3;
  expect_rates(form, steps, {1, 1, 3, 3, 5, high, high, low, low, 1, 1, 1});
  form.second_stairs = 2;
  expect_rates(form, steps, {1, 1, 3, 3, 5, 3, 3, 3, 1, 1, 1, 1});
  EXPECT_NEAR(make(form)->betas(2)->beta1, 0.85, 1e-12);
}

TEST(DeepSpeedOneCycle, TheSecondHalfMayBeEmpty) {
  expect_rates(OneCycle{.min_lr = 1, .max_lr = 5, .first_size = 3, .second_size = 0}, {0, 1, 2, 3, 4},
               {1, 7.0 / 3, 11.0 / 3, 1, 1});
}

TEST(DeepSpeedOneCycle, MomentumMovesTheOtherWay) {
  const auto schedule = make(OneCycle{.min_lr = 1e-4,
                                      .max_lr = 5e-4,
                                      .first_size = 4,
                                      .second_size = 4,
                                      .decay_step_size = 2,
                                      .min_momentum = 0.6,
                                      .max_momentum = 0.8,
                                      .decay_momentum_rate = 0.1});
  const std::vector<std::pair<int64_t, double>> expected = {{0, 0.6}, {1, 0.75}, {2, 0.7},       {4, 0.6},
                                                            {6, 0.7}, {8, 0.8},  {10, 0.8 * 1.1}};
  for (const auto& [step, momentum] : expected) {
    ASSERT_TRUE(schedule->betas(step).has_value());
    EXPECT_NEAR(schedule->betas(step)->beta1, momentum, 1e-15) << "step " << step;
    EXPECT_EQ(schedule->betas(step)->beta2, 0.99);
  }
  EXPECT_THROW(schedule->betas(1000), Error);  // above 1
  const auto without = make(OneCycle{.min_lr = 1e-4, .max_lr = 5e-4, .cycles_momentum = false});
  EXPECT_FALSE(without->betas(3).has_value());
  EXPECT_FALSE(make(WarmupLR())->betas(3).has_value());
}

}  // namespace
}  // namespace tessera
