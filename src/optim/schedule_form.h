// The learning-rate schedules, each with settings of its own.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <variant>

#include "base/choice.h"

namespace tessera {

enum class ScheduleType {
  kLinear,
  kCosine,
  kCosineWithRestarts,
  kPolynomial,
  kConstant,
  kConstantWithWarmup,
  kInverseSqrt,
  kCosineWithMinLr,
  kCosineWarmupWithMinLr,
  kWarmupStableDecay,
  kReduceLrOnPlateau,
  kWarmupLR,
  kWarmupDecayLR,
  kWarmupCosineLR,
  kLRRangeTest,
  kOneCycle,
};
constexpr auto choice_words(ScheduleType) {
  using enum ScheduleType;
  return std::to_array<Word<ScheduleType>>({{"linear", kLinear},
                                            {"cosine", kCosine},
                                            {"cosine_with_restarts", kCosineWithRestarts},
                                            {"polynomial", kPolynomial},
                                            {"constant", kConstant},
                                            {"constant_with_warmup", kConstantWithWarmup},
                                            {"inverse_sqrt", kInverseSqrt},
                                            {"cosine_with_min_lr", kCosineWithMinLr},
                                            {"cosine_warmup_with_min_lr", kCosineWarmupWithMinLr},
                                            {"warmup_stable_decay", kWarmupStableDecay},
                                            {"reduce_lr_on_plateau", kReduceLrOnPlateau},
                                            {"WarmupLR", kWarmupLR},
                                            {"WarmupDecayLR", kWarmupDecayLR},
                                            {"WarmupCosineLR", kWarmupCosineLR},
                                            {"LRRangeTest", kLRRangeTest},
                                            {"OneCycle", kOneCycle}});
}
// nullopt if no schedule has this name.
std::optional<ScheduleType> schedule_named(std::string_view name);

// Schedules of Hugging Face's Trainer (transformers/optimization.py), with its defaults.
struct LinearSchedule {
  bool operator==(const LinearSchedule&) const = default;
};
struct CosineSchedule {
  double num_cycles = 0.5;
  bool operator==(const CosineSchedule&) const = default;
};
struct CosineWithRestarts {
  double num_cycles = 1;
  bool operator==(const CosineWithRestarts&) const = default;
};
struct PolynomialSchedule {
  double lr_end = 1e-7;  // below the learning rate
  double power = 1;
  bool operator==(const PolynomialSchedule&) const = default;
};
struct ConstantSchedule {
  bool operator==(const ConstantSchedule&) const = default;
};
struct ConstantWithWarmup {
  bool operator==(const ConstantWithWarmup&) const = default;
};
struct InverseSqrtSchedule {
  std::optional<double> timescale = {};  // unset = the steps of the warm-up, or 10000 without one
  bool operator==(const InverseSqrtSchedule&) const = default;
};
// Where a cosine ends.
struct LowestRate {
  double value = 0;
  bool is_fraction = true;  // of the learning rate
  bool operator==(const LowestRate&) const = default;
};
struct CosineWithMinLr {
  double num_cycles = 0.5;
  LowestRate lowest = {};
  bool operator==(const CosineWithMinLr&) const = default;
};
struct CosineWarmupWithMinLr {
  double num_cycles = 0.5;
  LowestRate lowest = {};
  std::optional<double> warmup_lr_rate = {};  // fraction of the learning rate in the first step
  bool operator==(const CosineWarmupWithMinLr&) const = default;
};
enum class RateCurve { kLinear, kCosine, kOneMinusSqrt };
struct WarmupStableDecay {
  int64_t num_decay_steps = 0;
  std::optional<int64_t> num_stable_steps = {};  // unset = what warm-up and decay leave of the run
  RateCurve warmup = RateCurve::kLinear;
  RateCurve decay = RateCurve::kCosine;
  double min_lr_ratio = 0;
  double num_cycles = 0.5;
  bool operator==(const WarmupStableDecay&) const = default;
};
// torch.optim.lr_scheduler.ReduceLROnPlateau, stepped at every evaluation. Warm-up does not apply.
struct ReduceLrOnPlateau {
  std::optional<bool> greater_is_better = {};  // unset = as the metric of the evaluation
  double factor = 0.1;                         // below 1
  int64_t patience = 10;
  double threshold = 1e-4;
  bool threshold_is_relative = true;
  int64_t cooldown = 0;
  double min_lr = 0;
  double smallest_change = 1e-8;
  bool operator==(const ReduceLrOnPlateau&) const = default;
};

// Schedules of DeepSpeed (deepspeed/runtime/lr_schedules.py), with its defaults. A field that was "auto" is
// unset and follows from the run, as Hugging Face's Trainer fills it in.
struct DeepSpeedWarmup {
  std::optional<int64_t> num_steps = 1000;  // unset = the run's warm-up steps; at least 2 are taken
  bool is_logarithmic = true;               // else linear
  bool operator==(const DeepSpeedWarmup&) const = default;
};
struct WarmupLR {
  DeepSpeedWarmup warmup = {};
  double min_lr = 0;
  std::optional<double> max_lr = {};  // unset = the learning rate
  bool operator==(const WarmupLR&) const = default;
};
struct WarmupDecayLR {
  DeepSpeedWarmup warmup = {};
  double min_lr = 0;
  std::optional<double> max_lr = 1e-3;      // unset = the learning rate
  std::optional<int64_t> total_steps = {};  // unset = the run's steps
  bool operator==(const WarmupDecayLR&) const = default;
};
struct WarmupCosineLR {
  DeepSpeedWarmup warmup = {};
  std::optional<int64_t> total_steps = {};  // unset = the run's steps
  double first_ratio = 0;                   // of the learning rate, before the warm-up
  double last_ratio = 1e-4;
  bool operator==(const WarmupCosineLR&) const = default;
};
struct LRRangeTest {
  double min_lr = 1e-3;
  int64_t step_size = 2000;  // at least 1
  double step_rate = 1;
  bool is_staircase = false;
  bool operator==(const LRRangeTest&) const = default;
};
struct OneCycle {
  double min_lr = 0;
  double max_lr = 0;
  double decay_lr_rate = 0;
  int64_t first_size = 2000;  // steps, at least 1
  int64_t second_size = 2000;
  int64_t first_stairs = 0;  // 0: the rate changes with every step
  int64_t second_stairs = 0;
  int64_t decay_step_size = 0;  // 0: no decay
  bool cycles_momentum = true;
  double min_momentum = 0.8;  // from 0 to below 1, as the next
  double max_momentum = 0.9;
  double decay_momentum_rate = 0;
  bool operator==(const OneCycle&) const = default;
};

// In the order of ScheduleType.
using ScheduleForm = std::variant<LinearSchedule, CosineSchedule, CosineWithRestarts, PolynomialSchedule,
                                  ConstantSchedule, ConstantWithWarmup, InverseSqrtSchedule, CosineWithMinLr,
                                  CosineWarmupWithMinLr, WarmupStableDecay, ReduceLrOnPlateau, WarmupLR,
                                  WarmupDecayLR, WarmupCosineLR, LRRangeTest, OneCycle>;
inline ScheduleType schedule_type(const ScheduleForm& form) {
  return static_cast<ScheduleType>(form.index());
}
// The schedule of a type with the default settings.
ScheduleForm schedule_of(ScheduleType type);

}  // namespace tessera
