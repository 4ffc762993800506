#include "settings/run/schedule_keywords.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "base/error.h"

namespace tessera {
namespace {

using testing::HasSubstr;

ScheduleForm read(const std::string& type, const std::string& text) {
  return read_schedule_keywords(schedule_named(type).value(), text);
}

std::string refusal(const std::string& type, const std::string& text) {
  try {
    read(type, text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadConfig) << error.what();
    return error.what();
  }
  ADD_FAILURE() << type << " " << text << " was accepted";
  return "";
}

TEST(ScheduleKeywords, WithoutAnyAreTheDefaults) {
  const std::set<std::string> need_some = {"cosine_with_min_lr",  "cosine_warmup_with_min_lr",
                                           "warmup_stable_decay", "WarmupDecayLR",
                                           "WarmupCosineLR",      "OneCycle"};
  for (const auto& [word, type] : choice_words(ScheduleType())) {
    const std::string name(word);
    if (need_some.contains(name)) {
      EXPECT_THAT(refusal(name, ""), HasSubstr("lr_scheduler_type " + name + " needs "));
      continue;
    }
    for (const char* text : {"", "{}", "null"}) EXPECT_EQ(read(name, text), schedule_of(type)) << name;
  }
}

TEST(ScheduleKeywords, OfTransformersAreRead) {
  const std::vector<std::tuple<const char*, const char*, ScheduleForm>> cases = {
      {"cosine", R"({"num_cycles": 1})", CosineSchedule{.num_cycles = 1}},
      {"cosine_with_restarts", R"({"num_cycles": 2})", CosineWithRestarts{.num_cycles = 2}},
      {"polynomial", R"({"lr_end": 0.0002, "power": 2})", PolynomialSchedule{.lr_end = 0.0002, .power = 2}},
      {"inverse_sqrt", R"({"timescale": 9})", InverseSqrtSchedule{.timescale = 9}},
      {"cosine_with_min_lr", R"({"min_lr": 0.0002})", CosineWithMinLr{.lowest = {0.0002, false}}},
      {"cosine_with_min_lr", R"({"min_lr_rate": 0.2, "min_lr": null})", CosineWithMinLr{.lowest = {0.2}}},
      {"cosine_warmup_with_min_lr", R"({"min_lr_rate": 0.1, "warmup_lr_rate": 0.4, "num_cycles": 1})",
       CosineWarmupWithMinLr{.num_cycles = 1, .lowest = {0.1}, .warmup_lr_rate = 0.4}},
      {"warmup_stable_decay", R"({"num_decay_steps": 4})", WarmupStableDecay{.num_decay_steps = 4}},
      {"warmup_stable_decay",
       R"({"num_decay_steps": 4, "num_stable_steps": 1, "warmup_type": "cosine", "decay_type": "1-sqrt",
           "min_lr_ratio": 0.2, "num_cycles": 2})",
       WarmupStableDecay{.num_decay_steps = 4,
                         .num_stable_steps = 1,
                         .warmup = RateCurve::kCosine,
                         .decay = RateCurve::kOneMinusSqrt,
                         .min_lr_ratio = 0.2,
                         .num_cycles = 2}},
      {"reduce_lr_on_plateau",
       R"({"mode": "min", "factor": 0.5, "patience": 0, "threshold": 0.1, "threshold_mode": "abs",
           "cooldown": 2, "min_lr": 0.001, "eps": 0})",
       ReduceLrOnPlateau{.greater_is_better = false,
                         .factor = 0.5,
                         .patience = 0,
                         .threshold = 0.1,
                         .threshold_is_relative = false,
                         .cooldown = 2,
                         .min_lr = 0.001,
                         .smallest_change = 0}},
      {"reduce_lr_on_plateau", R"({"mode": "max"})", ReduceLrOnPlateau{.greater_is_better = true}},
  };
  for (const auto& [type, text, form] : cases) EXPECT_TRUE(read(type, text) == form) << type << " " << text;
}

TEST(ScheduleKeywords, OfDeepSpeedAreRead) {
  const std::vector<std::tuple<const char*, const char*, ScheduleForm>> cases = {
      {"WarmupLR",
       R"({"warmup_min_lr": 1e-4, "warmup_max_lr": 5e-4, "warmup_num_steps": 4, "warmup_type": "linear"})",
       WarmupLR{.warmup = {4, false}, .min_lr = 1e-4, .max_lr = 5e-4}},
      {"WarmupLR", R"({"warmup_min_lr": "auto", "warmup_max_lr": "auto", "warmup_num_steps": "auto"})",
       WarmupLR{.warmup = {std::nullopt}}},
      {"WarmupDecayLR", R"({"total_num_steps": 12, "warmup_max_lr": 8e-4})",
       WarmupDecayLR{.max_lr = 8e-4, .total_steps = 12}},
      {"WarmupDecayLR", R"({"total_num_steps": "auto", "warmup_max_lr": "auto"})",
       WarmupDecayLR{.max_lr = std::nullopt}},
      {"WarmupCosineLR", R"({"total_num_steps": 12, "warmup_min_ratio": 0.2, "cos_min_ratio": 0.1})",
       WarmupCosineLR{.total_steps = 12, .first_ratio = 0.2, .last_ratio = 0.1}},
      {"LRRangeTest",
       R"({"lr_range_test_min_lr": 1e-4, "lr_range_test_step_size": 4, "lr_range_test_step_rate": 2,
           "lr_range_test_staircase": true})",
       LRRangeTest{.min_lr = 1e-4, .step_size = 4, .step_rate = 2, .is_staircase = true}},
      {"OneCycle",
       R"({"cycle_min_lr": 1, "cycle_max_lr": 5, "cycle_first_step_size": 4, "cycle_first_stair_count": 2})",
       OneCycle{.min_lr = 1,
                .max_lr = 5,
                .first_size = 4,
                .second_size = 4,
                .first_stairs = 2,
                .second_stairs = 2}},
      {"OneCycle",
       R"({"cycle_min_lr": 1, "cycle_max_lr": 5, "cycle_second_step_size": 0, "cycle_second_stair_count": 3,
           "decay_lr_rate": 1, "decay_step_size": 2, "cycle_momentum": false, "cycle_min_mom": 0.6,
           "cycle_max_mom": 0.7, "decay_mom_rate": 0.1})",
       OneCycle{.min_lr = 1,
                .max_lr = 5,
                .decay_lr_rate = 1,
                .second_size = 0,
                .second_stairs = 3,
                .decay_step_size = 2,
                .cycles_momentum = false,
                .min_momentum = 0.6,
                .max_momentum = 0.7,
                .decay_momentum_rate = 0.1}},
  };
  for (const auto& [type, text, form] : cases) EXPECT_TRUE(read(type, text) == form) << type << " " << text;
}

TEST(ScheduleKeywords, OfAnotherScheduleAreRefused) {
  EXPECT_THAT(refusal("cosine", R"({"num_cycle": 1})"), HasSubstr("did you mean 'num_cycles'?"));
  EXPECT_THAT(refusal("linear", R"({"min_lr": 1})"), HasSubstr("has no keyword 'min_lr'; it takes none"));
  EXPECT_THAT(refusal("WarmupLR", R"({"warmup_num_step": 3})"),
              HasSubstr("did you mean 'warmup_num_steps'?"));
}

TEST(ScheduleKeywords, OfAWrongValueAreRefused) {
  EXPECT_THAT(refusal("cosine", "num_cycles=1"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(refusal("cosine", "[1]"), HasSubstr("expected a JSON object"));
  EXPECT_THAT(refusal("cosine", R"({"num_cycles": "1"})"), HasSubstr("expected a number, found \"1\""));
  EXPECT_THAT(refusal("cosine", R"({"num_cycles": 1e999})"), HasSubstr("num_cycles"));
  EXPECT_THAT(refusal("inverse_sqrt", R"({"timescale": 0})"), HasSubstr("timescale must be above 0"));
  EXPECT_THAT(refusal("reduce_lr_on_plateau", R"({"factor": 1})"), HasSubstr("below 1"));
  EXPECT_THAT(refusal("warmup_stable_decay", R"({"num_decay_steps": 2, "decay_type": "sqrt"})"),
              HasSubstr("expected one of cosine, linear, 1-sqrt, found \"sqrt\""));
  EXPECT_THAT(refusal("warmup_stable_decay", R"({"num_decay_steps": 1.5})"), HasSubstr("whole number"));
  EXPECT_THAT(refusal("WarmupLR", R"({"warmup_type": "sqrt"})"), HasSubstr("expected one of log, linear"));
  EXPECT_THAT(refusal("WarmupLR", R"({"warmup_max_lr": [1]})"),
              HasSubstr("expected a number, found a list of 1, [1]"));
  EXPECT_THAT(refusal("LRRangeTest", R"({"lr_range_test_step_size": 0})"), HasSubstr("at least 1"));
  EXPECT_THAT(refusal("OneCycle", R"({"cycle_min_lr": 1, "cycle_max_lr": 2, "cycle_max_mom": 1})"),
              HasSubstr("from 0 to below 1"));
}

TEST(ScheduleKeywords, ThatAScheduleNeedsAreAskedFor) {
  EXPECT_THAT(refusal("cosine_with_min_lr", ""), HasSubstr("found neither"));
  EXPECT_THAT(refusal("cosine_with_min_lr", R"({"min_lr": 1e-5, "min_lr_rate": 0.1})"),
              HasSubstr("found both"));
  EXPECT_THAT(refusal("warmup_stable_decay", ""), HasSubstr("needs num_decay_steps"));
  EXPECT_THAT(refusal("WarmupDecayLR", ""), HasSubstr("needs total_num_steps"));
  EXPECT_THAT(refusal("WarmupCosineLR", "{}"), HasSubstr("needs total_num_steps"));
  EXPECT_THAT(refusal("OneCycle", R"({"cycle_min_lr": 1})"), HasSubstr("needs cycle_max_lr"));
}

}  // namespace
}  // namespace tessera
