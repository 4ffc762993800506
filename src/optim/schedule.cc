#include "optim/schedule.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numbers>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/name_hint.h"
#include "base/text.h"
#include "optim/schedule_keywords.h"

namespace tessera {
namespace {

// The inputs of a schedule: s completed steps, w = num_warmup_steps, T = num_training_steps.
using Lambda = RateOfStep;

double ratio(int64_t numerator, int64_t denominator) {
  return static_cast<double>(numerator) / static_cast<double>(std::max<int64_t>(1, denominator));
}

// 1 at progress 0, and 0 at progress 1 for half a cycle.
double cosine(double num_cycles, double progress) {
  return 0.5 * (1 + std::cos(std::numbers::pi * 2 * num_cycles * progress));
}

// Maps [0, 1] to [minimum, 1].
double lift(double factor, double minimum) { return factor * (1 - minimum) + minimum; }

// s / max(1, w) below w steps, then `after`.
Lambda with_linear_warmup(int64_t w, Lambda after) {
  return [w, after = std::move(after)](int64_t s) { return s < w ? ratio(s, w) : after(s); };
}

Lambda linear(const ScheduleOptions& o, Keywords&) {
  const int64_t w = o.num_warmup_steps, T = o.num_training_steps;
  return with_linear_warmup(w, [=](int64_t s) { return std::max(0.0, ratio(T - s, T - w)); });
}

Lambda cosine_decay(const ScheduleOptions& o, Keywords& keywords) {
  const int64_t w = o.num_warmup_steps, T = o.num_training_steps;
  const double num_cycles = keywords.number("num_cycles", 0.5);
  return with_linear_warmup(
      w, [=](int64_t s) { return std::max(0.0, cosine(num_cycles, ratio(s - w, T - w))); });
}

Lambda cosine_with_restarts(const ScheduleOptions& o, Keywords& keywords) {
  const int64_t w = o.num_warmup_steps, T = o.num_training_steps;
  const double num_cycles = keywords.number("num_cycles", 1);
  return with_linear_warmup(w, [=](int64_t s) {
    const double progress = ratio(s - w, T - w);
    if (progress >= 1) return 0.0;
    return std::max(0.0, cosine(0.5, std::fmod(num_cycles * progress, 1.0)));
  });
}

Lambda polynomial(const ScheduleOptions& o, Keywords& keywords) {
  const int64_t w = o.num_warmup_steps, T = o.num_training_steps;
  const double first = o.learning_rate;
  const double last = keywords.number("lr_end", 1e-7);
  const double power = keywords.number("power", 1);
  if (!(first > last)) {
    fail(ExitCode::kBadConfig, "lr_scheduler_type polynomial: lr_end {} must be below learning_rate {}", last,
         first);
  }
  return with_linear_warmup(w, [=](int64_t s) {
    if (s > T || T <= w) return last / first;
    const double remaining = 1 - ratio(s - w, T - w);
    return ((first - last) * std::pow(remaining, power) + last) / first;
  });
}

Lambda constant(const ScheduleOptions&, Keywords&) {
  return [](int64_t) { return 1.0; };
}

Lambda constant_with_warmup(const ScheduleOptions& o, Keywords&) {
  return with_linear_warmup(o.num_warmup_steps, [](int64_t) { return 1.0; });
}

Lambda inverse_sqrt(const ScheduleOptions& o, Keywords& keywords) {
  const int64_t w = o.num_warmup_steps;
  const double timescale = keywords.number("timescale", w > 0 ? static_cast<double>(w) : 10000.0);
  if (!(timescale > 0))
    fail(ExitCode::kBadConfig, "lr_scheduler_kwargs: timescale must be above 0, found {}", timescale);
  const double shift = timescale - static_cast<double>(w);
  return with_linear_warmup(
      w, [=](int64_t s) { return 1 / std::sqrt((static_cast<double>(s) + shift) / timescale); });
}

// min_lr or min_lr_rate, exactly one of them, as a fraction of the learning rate.
double minimum_rate(const ScheduleOptions& o, Keywords& keywords) {
  const std::optional<double> rate = keywords.number("min_lr_rate");
  const std::optional<double> absolute = keywords.number("min_lr");
  if (rate.has_value() == absolute.has_value()) {
    fail(ExitCode::kBadConfig,
         "lr_scheduler_kwargs: lr_scheduler_type {} needs exactly one of min_lr and min_lr_rate, found {}",
         o.type, rate ? "both" : "neither");
  }
  if (absolute && !(o.learning_rate > 0)) {
    fail(ExitCode::kBadConfig, "lr_scheduler_kwargs: min_lr needs a learning_rate above 0, found {}",
         o.learning_rate);
  }
  return rate ? *rate : *absolute / o.learning_rate;
}

Lambda cosine_with_min_lr(const ScheduleOptions& o, Keywords& keywords) {
  const int64_t w = o.num_warmup_steps, T = o.num_training_steps;
  const double num_cycles = keywords.number("num_cycles", 0.5);
  const double minimum = minimum_rate(o, keywords);
  return with_linear_warmup(
      w, [=](int64_t s) { return std::max(0.0, lift(cosine(num_cycles, ratio(s - w, T - w)), minimum)); });
}

// Counts from step 1, so that the first step already has a nonzero rate and the last one has the minimum.
Lambda cosine_warmup_with_min_lr(const ScheduleOptions& o, Keywords& keywords) {
  const int64_t w = o.num_warmup_steps, T = o.num_training_steps;
  const double num_cycles = keywords.number("num_cycles", 0.5);
  const double minimum = minimum_rate(o, keywords);
  const std::optional<double> first = keywords.number("warmup_lr_rate");
  return [=](int64_t s) {
    if (s < w) return first ? *first + (1 - *first) * ratio(s, w - 1) : ratio(s + 1, w);
    return std::max(0.0, lift(cosine(num_cycles, ratio(s - w + 1, T - w)), minimum));
  };
}

Lambda warmup_stable_decay(const ScheduleOptions& o, Keywords& keywords) {
  const int64_t w = o.num_warmup_steps;
  const std::optional<int64_t> decay = keywords.count("num_decay_steps");
  const std::optional<int64_t> stable_given = keywords.count("num_stable_steps");
  const std::string warmup_type = keywords.choice("warmup_type", {"linear", "cosine", "1-sqrt"});
  const std::string decay_type = keywords.choice("decay_type", {"cosine", "linear", "1-sqrt"});
  const double minimum = keywords.number("min_lr_ratio", 0);
  const double num_cycles = keywords.number("num_cycles", 0.5);
  if (!decay)
    fail(ExitCode::kBadConfig, "lr_scheduler_kwargs: lr_scheduler_type {} needs num_decay_steps", o.type);
  const int64_t stable = stable_given.value_or(o.num_training_steps - w - *decay);
  return [=, d = *decay](int64_t s) {
    if (s < w) {
      const double progress = ratio(s, w);
      const double factor = warmup_type == "linear"   ? progress
                            : warmup_type == "cosine" ? 0.5 * (1 - std::cos(std::numbers::pi * progress))
                                                      : 1 - std::sqrt(1 - progress);
      return std::max(0.0, lift(factor, minimum));
    }
    if (s < w + stable) return 1.0;
    if (s < w + stable + d) {
      const double progress = ratio(s - w - stable, d);
      const double factor = decay_type == "linear"   ? 1 - progress
                            : decay_type == "cosine" ? cosine(num_cycles, progress)
                                                     : 1 - std::sqrt(progress);
      return std::max(0.0, lift(factor, minimum));
    }
    return minimum;
  };
}

// torch.optim.lr_scheduler.ReduceLROnPlateau, stepped at every evaluation. Warm-up does not apply.
class ReduceOnPlateau : public Schedule {
 public:
  ReduceOnPlateau(const ScheduleOptions& o, Keywords& keywords)
      : learning_rate_(o.learning_rate),
        mode_given_(keywords.has("mode")),
        maximise_(keywords.choice("mode", {"min", "max"}) == "max"),
        factor_(keywords.number("factor", 0.1)),
        patience_(keywords.count("patience").value_or(10)),
        threshold_(keywords.number("threshold", 1e-4)),
        relative_(keywords.choice("threshold_mode", {"rel", "abs"}) == "rel"),
        cooldown_(keywords.count("cooldown").value_or(0)),
        min_lr_(keywords.number("min_lr", 0)),
        smallest_change_(keywords.number("eps", 1e-8)) {
    if (!(factor_ < 1))
      fail(ExitCode::kBadConfig, "lr_scheduler_kwargs: factor must be below 1, found {}", factor_);
  }

  double learning_rate(int64_t) const override { return learning_rate_; }

  void observe_metric(double metric, bool greater_is_better) override {
    if (!mode_given_) maximise_ = greater_is_better;
    if (!best_ || is_better(metric, *best_)) {
      best_ = metric;
      num_bad_ = 0;
    } else {
      ++num_bad_;
    }
    if (cooldown_left_ > 0) {
      --cooldown_left_;
      num_bad_ = 0;
    }
    if (num_bad_ <= patience_) return;
    const double reduced = std::max(learning_rate_ * factor_, min_lr_);
    if (learning_rate_ - reduced > smallest_change_) learning_rate_ = reduced;
    cooldown_left_ = cooldown_;
    num_bad_ = 0;
  }

  std::optional<PlateauState> plateau() const override {
    return PlateauState{learning_rate_, best_, num_bad_, cooldown_left_};
  }
  void restore(const PlateauState& state) override {
    learning_rate_ = state.learning_rate;
    best_ = state.best;
    num_bad_ = state.num_bad;
    cooldown_left_ = state.cooldown_left;
  }

 private:
  bool is_better(double metric, double best) const {
    if (maximise_) return metric > (relative_ ? best * (1 + threshold_) : best + threshold_);
    return metric < (relative_ ? best * (1 - threshold_) : best - threshold_);
  }

  double learning_rate_;
  bool mode_given_;
  bool maximise_;
  double factor_;
  int64_t patience_;
  double threshold_;
  bool relative_;
  int64_t cooldown_;
  double min_lr_;
  double smallest_change_;
  std::optional<double> best_;
  int64_t num_bad_ = 0;
  int64_t cooldown_left_ = 0;
};

struct LambdaOfType {
  ScheduleType type;
  Lambda (*make)(const ScheduleOptions&, Keywords&);
};

constexpr LambdaOfType kLambdas[] = {
    {ScheduleType::kLinear, linear},
    {ScheduleType::kCosine, cosine_decay},
    {ScheduleType::kCosineWithRestarts, cosine_with_restarts},
    {ScheduleType::kPolynomial, polynomial},
    {ScheduleType::kConstant, constant},
    {ScheduleType::kConstantWithWarmup, constant_with_warmup},
    {ScheduleType::kInverseSqrt, inverse_sqrt},
    {ScheduleType::kCosineWithMinLr, cosine_with_min_lr},
    {ScheduleType::kCosineWarmupWithMinLr, cosine_warmup_with_min_lr},
    {ScheduleType::kWarmupStableDecay, warmup_stable_decay},
};

}  // namespace

void Schedule::observe_metric(double, bool) {}

std::optional<PlateauState> Schedule::plateau() const { return std::nullopt; }

void Schedule::restore(const PlateauState&) {}

std::optional<AdamBetas> Schedule::betas(int64_t) const { return std::nullopt; }

std::unique_ptr<Schedule> make_schedule(const ScheduleOptions& options) {
  Keywords keywords(options.type, options.kwargs);
  std::unique_ptr<Schedule> schedule = make_deepspeed_schedule(options, keywords);
  if (options.type == ScheduleType::kReduceLrOnPlateau)
    schedule = std::make_unique<ReduceOnPlateau>(options, keywords);
  for (const LambdaOfType& entry : kLambdas) {
    if (options.type == entry.type)
      schedule = std::make_unique<StepSchedule>(options.learning_rate, entry.make(options, keywords));
  }
  TESSERA_CHECK(schedule != nullptr, "lr_scheduler_type {}", options.type);
  keywords.done();
  return schedule;
}

std::unique_ptr<Schedule> make_schedule(const ScheduleSpec& spec, int64_t num_training_steps) {
  return make_schedule({spec.type, spec.kwargs, spec.learning_rate, spec.num_warmup_steps(num_training_steps),
                        num_training_steps});
}

bool ScheduleSpec::needs_evaluations() const { return type == ScheduleType::kReduceLrOnPlateau; }

int64_t ScheduleSpec::num_warmup_steps(int64_t num_training_steps) const {
  const double total = static_cast<double>(num_training_steps);
  if (warmup_steps >= 1) return static_cast<int64_t>(warmup_steps);
  const double ratio = warmup_steps > 0 ? warmup_steps : warmup_ratio.value_or(0);
  return static_cast<int64_t>(std::ceil(total * ratio));
}

std::optional<ScheduleType> schedule_named(std::string_view name) {
  for (const auto& [text, type] : choice_words(ScheduleType())) {
    if (text == name) return type;
  }
  return std::nullopt;
}

}  // namespace tessera
