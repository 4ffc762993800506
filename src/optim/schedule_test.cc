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
std::vector<double> factors(const std::string& type, const std::string& kwargs, int64_t w, int64_t T,
                            const std::vector<int64_t>& steps) {
  const auto schedule = make_schedule({schedule_named(type).value(), kwargs, kBase, w, T});
  std::vector<double> out;
  for (const int64_t s : steps) out.push_back(schedule->learning_rate(s) / kBase);
  return out;
}

// Every value within 1e-12 of one computed by hand from the formulas in transformers/optimization.py.
void expect_factors(const std::string& type, const std::string& kwargs, int64_t w, int64_t T,
                    const std::vector<int64_t>& steps, const std::vector<double>& expected) {
  ASSERT_EQ(steps.size(), expected.size());
  const std::vector<double> found = factors(type, kwargs, w, T, steps);
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_NEAR(found[i], expected[i], 1e-12)
        << type << " " << kwargs << " w=" << w << " T=" << T << " s=" << steps[i];
  }
}

std::string refusal(const ScheduleOptions& options) {
  try {
    make_schedule(options);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadConfig) << error.what();
    return error.what();
  }
  ADD_FAILURE() << word_of(options.type) << " " << options.kwargs << " was accepted";
  return "";
}

const double kHalfRoot = std::sqrt(0.5);  // cos(pi / 4)

TEST(LinearSchedule, WarmsUpThenFallsToZeroAndStaysThere) {
  expect_factors("linear", "", 4, 12, {0, 1, 3, 4, 5, 8, 11, 12, 13, 100},
                 {0, 0.25, 0.75, 1, 0.875, 0.5, 0.125, 0, 0, 0});
}

TEST(LinearSchedule, StartsAtTheFullRateWithoutWarmup) {
  expect_factors("linear", "", 0, 4, {0, 1, 4}, {1, 0.75, 0});
}

TEST(LinearSchedule, DividesByOneWhenWarmupIsTheWholeRun) {
  expect_factors("linear", "", 4, 4, {0, 3, 4, 5}, {0, 0.75, 0, 0});
  expect_factors("linear", "", 6, 4, {3, 5, 6}, {0.5, 5.0 / 6, 0});  // warm-up longer than the run
}

TEST(CosineSchedule, FollowsHalfACosineByDefault) {
  expect_factors("cosine", "", 2, 10, {0, 1, 2, 4, 6, 8, 10},
                 {0, 0.5, 1, 0.5 * (1 + kHalfRoot), 0.5, 0.5 * (1 - kHalfRoot), 0});
}

TEST(CosineSchedule, RisesAgainWithAFullCycleAndBeyondTheEnd) {
  expect_factors("cosine", R"({"num_cycles": 1})", 0, 8, {0, 2, 4, 6, 8}, {1, 0.5, 0, 0.5, 1});
  expect_factors("cosine", "", 0, 4, {6, 8}, {0.5, 1});  // the formula is not cut at T
}

TEST(CosineWithRestartsSchedule, RestartsAtEachCycleAndEndsAtZero) {
  expect_factors("cosine_with_restarts", R"({"num_cycles": 2})", 2, 10, {1, 2, 4, 6, 8, 9, 10, 11},
                 {0.5, 1, 0.5, 1, 0.5, 0.5 * (1 - kHalfRoot), 0, 0});
  expect_factors("cosine_with_restarts", "", 0, 4, {0, 2, 4}, {1, 0.5, 0});
}

TEST(PolynomialSchedule, EndsAtLrEnd) {
  expect_factors("polynomial", R"({"lr_end": 0.0002, "power": 2})", 2, 6, {0, 1, 2, 4, 6, 7},
                 {0, 0.5, 1, (0.0018 * 0.25 + 0.0002) / kBase, 0.1, 0.1});
  expect_factors("polynomial", "", 0, 4, {2, 4, 9},
                 {((kBase - 1e-7) * 0.5 + 1e-7) / kBase, 1e-7 / kBase, 1e-7 / kBase});
  expect_factors("polynomial", "", 4, 4, {3, 4}, {0.75, 1e-7 / kBase});
}

TEST(PolynomialSchedule, RefusesAnEndAboveTheStart) {
  EXPECT_THAT(refusal({ScheduleType::kPolynomial, R"({"lr_end": 0.1})", kBase, 0, 4}),
              HasSubstr("lr_end 0.1 must be below"));
}

TEST(ConstantSchedules, DifferInWarmupOnly) {
  expect_factors("constant", "", 4, 8, {0, 3, 4, 99}, {1, 1, 1, 1});
  expect_factors("constant_with_warmup", "", 4, 8, {0, 3, 4, 99}, {0, 0.75, 1, 1});
}

TEST(InverseSqrtSchedule, TakesWarmupAsTimescale) {
  expect_factors("inverse_sqrt", "", 4, 100, {0, 2, 4, 16, 64}, {0, 0.5, 1, 0.5, 0.25});
  expect_factors("inverse_sqrt", "", 0, 100, {0, 30000}, {1, 0.5});  // 10000 without warm-up
  expect_factors("inverse_sqrt", R"({"timescale": 9})", 4, 100, {4, 31}, {1, 0.5});
}

TEST(CosineWithMinLrSchedule, EndsAtTheMinimum) {
  expect_factors("cosine_with_min_lr", R"({"min_lr": 0.0002})", 2, 10, {1, 2, 6, 10}, {0.5, 1, 0.55, 0.1});
  expect_factors("cosine_with_min_lr", R"({"min_lr_rate": 0.2, "min_lr": null})", 0, 8, {0, 4, 8},
                 {1, 0.6, 0.2});
}

TEST(CosineWithMinLrSchedule, NeedsExactlyOneMinimum) {
  EXPECT_THAT(refusal({ScheduleType::kCosineWithMinLr, "", kBase, 0, 4}), HasSubstr("found neither"));
  EXPECT_THAT(
      refusal({ScheduleType::kCosineWithMinLr, R"({"min_lr": 1e-5, "min_lr_rate": 0.1})", kBase, 0, 4}),
      HasSubstr("found both"));
}

TEST(CosineWarmupWithMinLrSchedule, CountsFromStepOne) {
  expect_factors("cosine_warmup_with_min_lr", R"({"min_lr_rate": 0.1})", 4, 12, {0, 3, 4, 7, 11},
                 {0.25, 1, 0.5 * (1 + std::cos(M_PI / 8)) * 0.9 + 0.1, 0.55, 0.1});
  expect_factors("cosine_warmup_with_min_lr", R"({"min_lr_rate": 0.1, "warmup_lr_rate": 0.4})", 4, 12,
                 {0, 1, 3, 7}, {0.4, 0.6, 1, 0.55});
  expect_factors("cosine_warmup_with_min_lr", R"({"min_lr_rate": 0.1, "warmup_lr_rate": 0.4})", 1, 9, {0},
                 {0.4});
}

TEST(WarmupStableDecaySchedule, HasThreePhases) {
  expect_factors("warmup_stable_decay", R"({"num_decay_steps": 4})", 2, 10, {0, 1, 2, 5, 6, 7, 8, 10, 11},
                 {0, 0.5, 1, 1, 1, 0.5 * (1 + kHalfRoot), 0.5, 0, 0});
}

TEST(WarmupStableDecaySchedule, HonoursEveryShape) {
  expect_factors(
      "warmup_stable_decay",
      R"({"num_decay_steps": 4, "decay_type": "linear", "warmup_type": "cosine", "min_lr_ratio": 0.2})", 4,
      12, {0, 1, 2, 4, 8, 9, 11, 12}, {0.2, 0.5 * (1 - kHalfRoot) * 0.8 + 0.2, 0.6, 1, 1, 0.8, 0.4, 0.2});
  expect_factors(
      "warmup_stable_decay",
      R"({"num_decay_steps": 4, "decay_type": "1-sqrt", "warmup_type": "1-sqrt", "num_stable_steps": 1})", 4,
      12, {0, 3, 4, 5, 6, 9}, {0, 0.5, 1, 1, 0.5, 0});
  expect_factors("warmup_stable_decay", R"({"num_decay_steps": 4, "num_cycles": 1, "num_stable_steps": 0})",
                 0, 12, {0, 1, 2, 3}, {1, 0.5, 0, 0.5});
}

TEST(WarmupStableDecaySchedule, NeedsDecayStepsAndKnownTypes) {
  EXPECT_THAT(refusal({ScheduleType::kWarmupStableDecay, "", kBase, 0, 4}),
              HasSubstr("needs num_decay_steps"));
  EXPECT_THAT(refusal({ScheduleType::kWarmupStableDecay, R"({"num_decay_steps": 2, "decay_type": "sqrt"})",
                       kBase, 0, 4}),
              HasSubstr("expected one of cosine, linear, 1-sqrt, found \"sqrt\""));
  EXPECT_THAT(refusal({ScheduleType::kWarmupStableDecay, R"({"num_decay_steps": 1.5})", kBase, 0, 4}),
              HasSubstr("whole number"));
}

TEST(ReduceOnPlateauSchedule, ReducesAfterMoreThanPatienceBadEvaluations) {
  const auto schedule =
      make_schedule({ScheduleType::kReduceLrOnPlateau, R"({"patience": 1, "factor": 0.5})", kBase, 3, 10});
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
  const auto schedule =
      make_schedule({ScheduleType::kReduceLrOnPlateau,
                     R"({"patience": 0, "cooldown": 2, "min_lr": 0.0015, "factor": 0.5})", kBase, 0, 10});
  schedule->observe_metric(1, true);
  schedule->observe_metric(0.5, true);  // worse when greater is better
  EXPECT_EQ(schedule->learning_rate(1), 0.0015);
  const auto again =
      make_schedule({ScheduleType::kReduceLrOnPlateau,
                     R"({"patience": 0, "cooldown": 2, "factor": 0.5, "mode": "min"})", kBase, 0, 10});
  again->observe_metric(1, true);  // mode is given: lower is better
  for (const double expected : {kBase / 2, kBase / 2, kBase / 2, kBase / 4}) {
    again->observe_metric(2, true);
    EXPECT_EQ(again->learning_rate(1), expected);
  }
}

TEST(ReduceOnPlateauSchedule, GoesOnFromItsState) {
  const ScheduleOptions options = {ScheduleType::kReduceLrOnPlateau,
                                   R"({"patience": 1, "cooldown": 1, "factor": 0.5})", kBase, 0, 10};
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
  EXPECT_FALSE(make_schedule({ScheduleType::kLinear, "", kBase, 0, 10})->plateau());
}

TEST(ReduceOnPlateauSchedule, RefusesAFactorThatDoesNotReduce) {
  EXPECT_THAT(refusal({ScheduleType::kReduceLrOnPlateau, R"({"factor": 1})", kBase, 0, 4}),
              HasSubstr("below 1"));
}

TEST(MakeSchedule, NamesTheNearestKeyword) {
  EXPECT_THAT(refusal({ScheduleType::kCosine, R"({"num_cycle": 1})", kBase, 0, 4}),
              HasSubstr("did you mean 'num_cycles'?"));
  EXPECT_THAT(refusal({ScheduleType::kLinear, R"({"min_lr": 1})", kBase, 0, 4}),
              HasSubstr("has no keyword 'min_lr'; it takes none"));
}

TEST(MakeSchedule, RefusesWhatIsNotAnObjectOfNumbers) {
  EXPECT_THAT(refusal({ScheduleType::kCosine, "num_cycles=1", kBase, 0, 4}),
              HasSubstr("expected a JSON object"));
  EXPECT_THAT(refusal({ScheduleType::kCosine, "[1]", kBase, 0, 4}), HasSubstr("expected a JSON object"));
  EXPECT_THAT(refusal({ScheduleType::kCosine, R"({"num_cycles": "1"})", kBase, 0, 4}),
              HasSubstr("expected a number, found \"1\""));
  EXPECT_THAT(refusal({ScheduleType::kCosine, R"({"num_cycles": 1e999})", kBase, 0, 4}),
              HasSubstr("num_cycles"));
}

TEST(MakeSchedule, KnowsEveryName) {
  for (const auto& [word, type] : choice_words(ScheduleType())) {
    const std::string name(word);
    std::string kwargs;
    if (name.ends_with("with_min_lr")) kwargs = R"({"min_lr_rate": 0.1})";
    if (name == "warmup_stable_decay") kwargs = R"({"num_decay_steps": 3})";
    if (name == "WarmupDecayLR" || name == "WarmupCosineLR") kwargs = R"({"total_num_steps": "auto"})";
    if (name == "OneCycle") kwargs = R"({"cycle_min_lr": 1e-4, "cycle_max_lr": 1e-3})";
    const auto schedule = make_schedule({type, kwargs, kBase, 2, 10});
    for (int64_t s = 0; s < 15; ++s) {
      EXPECT_GE(schedule->learning_rate(s), 0) << name << " s=" << s;
      EXPECT_LE(schedule->learning_rate(s), kBase * (1 + 1e-12)) << name << " s=" << s;
    }
  }
}

}  // namespace
}  // namespace tessera
