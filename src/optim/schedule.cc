#include "optim/schedule.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <optional>
#include <utility>

#include "base/error.h"
#include "optim/step_schedule.h"

namespace tessera {
namespace {

// Below, s counts completed steps, w is num_warmup_steps and T is num_training_steps.
double ratio(int64_t numerator, int64_t denominator) {
  return static_cast<double>(numerator) / static_cast<double>(std::max<int64_t>(1, denominator));
}

// 1 at progress 0, and 0 at progress 1 for half a cycle.
double cosine(double num_cycles, double progress) {
  return 0.5 * (1 + std::cos(std::numbers::pi * 2 * num_cycles * progress));
}

// Maps [0, 1] to [minimum, 1].
double lift(double factor, double minimum) { return factor * (1 - minimum) + minimum; }

std::unique_ptr<Schedule> by_factor(const ScheduleOptions& run, RateOfStep factor) {
  return std::make_unique<StepSchedule>(run.learning_rate, std::move(factor));
}

// s / max(1, w) below w steps, then `after`.
std::unique_ptr<Schedule> with_linear_warmup(const ScheduleOptions& run, RateOfStep after) {
  return by_factor(run, [w = run.num_warmup_steps, after = std::move(after)](int64_t s) {
    return s < w ? ratio(s, w) : after(s);
  });
}

std::unique_ptr<Schedule> make_schedule(const LinearSchedule&, const ScheduleOptions& run) {
  const int64_t w = run.num_warmup_steps, T = run.num_training_steps;
  return with_linear_warmup(run, [=](int64_t s) { return std::max(0.0, ratio(T - s, T - w)); });
}

std::unique_ptr<Schedule> make_schedule(const CosineSchedule& form, const ScheduleOptions& run) {
  const int64_t w = run.num_warmup_steps, T = run.num_training_steps;
  return with_linear_warmup(
      run, [=](int64_t s) { return std::max(0.0, cosine(form.num_cycles, ratio(s - w, T - w))); });
}

std::unique_ptr<Schedule> make_schedule(const CosineWithRestarts& form, const ScheduleOptions& run) {
  const int64_t w = run.num_warmup_steps, T = run.num_training_steps;
  return with_linear_warmup(run, [=](int64_t s) {
    const double progress = ratio(s - w, T - w);
    if (progress >= 1) return 0.0;
    return std::max(0.0, cosine(0.5, std::fmod(form.num_cycles * progress, 1.0)));
  });
}

std::unique_ptr<Schedule> make_schedule(const PolynomialSchedule& form, const ScheduleOptions& run) {
  const int64_t w = run.num_warmup_steps, T = run.num_training_steps;
  const double first = run.learning_rate, last = form.lr_end;
  if (!(first > last)) {
    fail(ExitCode::kBadConfig, "lr_scheduler_type polynomial: lr_end {} must be below learning_rate {}", last,
         first);
  }
  return with_linear_warmup(run, [=, power = form.power](int64_t s) {
    if (s > T || T <= w) return last / first;
    const double remaining = 1 - ratio(s - w, T - w);
    return ((first - last) * std::pow(remaining, power) + last) / first;
  });
}

std::unique_ptr<Schedule> make_schedule(const ConstantSchedule&, const ScheduleOptions& run) {
  return by_factor(run, [](int64_t) { return 1.0; });
}

std::unique_ptr<Schedule> make_schedule(const ConstantWithWarmup&, const ScheduleOptions& run) {
  return with_linear_warmup(run, [](int64_t) { return 1.0; });
}

std::unique_ptr<Schedule> make_schedule(const InverseSqrtSchedule& form, const ScheduleOptions& run) {
  const int64_t w = run.num_warmup_steps;
  const double timescale = form.timescale.value_or(w > 0 ? static_cast<double>(w) : 10000.0);
  const double shift = timescale - static_cast<double>(w);
  return with_linear_warmup(
      run, [=](int64_t s) { return 1 / std::sqrt((static_cast<double>(s) + shift) / timescale); });
}

// The lowest rate as a fraction of the learning rate.
double lowest_fraction(const LowestRate& lowest, const ScheduleOptions& run) {
  if (lowest.is_fraction) return lowest.value;
  if (!(run.learning_rate > 0)) {
    fail(ExitCode::kBadConfig, "lr_scheduler_kwargs: min_lr needs a learning_rate above 0, found {}",
         run.learning_rate);
  }
  return lowest.value / run.learning_rate;
}

std::unique_ptr<Schedule> make_schedule(const CosineWithMinLr& form, const ScheduleOptions& run) {
  const int64_t w = run.num_warmup_steps, T = run.num_training_steps;
  return with_linear_warmup(run, [=, lowest = lowest_fraction(form.lowest, run)](int64_t s) {
    return std::max(0.0, lift(cosine(form.num_cycles, ratio(s - w, T - w)), lowest));
  });
}

// Counts from step 1, so that the first step already has a nonzero rate and the last one has the minimum.
std::unique_ptr<Schedule> make_schedule(const CosineWarmupWithMinLr& form, const ScheduleOptions& run) {
  const int64_t w = run.num_warmup_steps, T = run.num_training_steps;
  const std::optional<double> first = form.warmup_lr_rate;
  return by_factor(run, [=, lowest = lowest_fraction(form.lowest, run)](int64_t s) {
    if (s < w) return first ? *first + (1 - *first) * ratio(s, w - 1) : ratio(s + 1, w);
    return std::max(0.0, lift(cosine(form.num_cycles, ratio(s - w + 1, T - w)), lowest));
  });
}

double warmup_factor(RateCurve curve, double progress) {
  switch (curve) {
    case RateCurve::kLinear:
      return progress;
    case RateCurve::kCosine:
      return 0.5 * (1 - std::cos(std::numbers::pi * progress));
    case RateCurve::kOneMinusSqrt:
      break;
  }
  return 1 - std::sqrt(1 - progress);
}

double decay_factor(RateCurve curve, double num_cycles, double progress) {
  switch (curve) {
    case RateCurve::kLinear:
      return 1 - progress;
    case RateCurve::kCosine:
      return cosine(num_cycles, progress);
    case RateCurve::kOneMinusSqrt:
      break;
  }
  return 1 - std::sqrt(progress);
}

std::unique_ptr<Schedule> make_schedule(const WarmupStableDecay& form, const ScheduleOptions& run) {
  const int64_t w = run.num_warmup_steps, d = form.num_decay_steps;
  const int64_t stable = form.num_stable_steps.value_or(run.num_training_steps - w - d);
  return by_factor(run, [=](int64_t s) {
    if (s < w) return std::max(0.0, lift(warmup_factor(form.warmup, ratio(s, w)), form.min_lr_ratio));
    if (s < w + stable) return 1.0;
    if (s >= w + stable + d) return form.min_lr_ratio;
    const double factor = decay_factor(form.decay, form.num_cycles, ratio(s - w - stable, d));
    return std::max(0.0, lift(factor, form.min_lr_ratio));
  });
}

class PlateauSchedule : public Schedule {
 public:
  PlateauSchedule(const ReduceLrOnPlateau& form, double learning_rate)
      : form_(form), learning_rate_(learning_rate) {}

  double learning_rate(int64_t) const override { return learning_rate_; }

  void observe_metric(double metric, bool greater_is_better) override {
    if (!best_ || is_better(metric, *best_, form_.greater_is_better.value_or(greater_is_better))) {
      best_ = metric;
      num_bad_ = 0;
    } else {
      ++num_bad_;
    }
    if (cooldown_left_ > 0) {
      --cooldown_left_;
      num_bad_ = 0;
    }
    if (num_bad_ <= form_.patience) return;
    const double reduced = std::max(learning_rate_ * form_.factor, form_.min_lr);
    if (learning_rate_ - reduced > form_.smallest_change) learning_rate_ = reduced;
    cooldown_left_ = form_.cooldown;
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
  bool is_better(double metric, double best, bool maximise) const {
    const double threshold = form_.threshold;
    if (maximise) return metric > (form_.threshold_is_relative ? best * (1 + threshold) : best + threshold);
    return metric < (form_.threshold_is_relative ? best * (1 - threshold) : best - threshold);
  }

  const ReduceLrOnPlateau form_;
  double learning_rate_;
  std::optional<double> best_;
  int64_t num_bad_ = 0;
  int64_t cooldown_left_ = 0;
};

std::unique_ptr<Schedule> make_schedule(const ReduceLrOnPlateau& form, const ScheduleOptions& run) {
  return std::make_unique<PlateauSchedule>(form, run.learning_rate);
}

template <size_t... kIndex>
constexpr auto makers_of_forms(std::index_sequence<kIndex...>) {
  return std::array<ScheduleForm (*)(), sizeof...(kIndex)>{
      [] { return ScheduleForm(std::in_place_index<kIndex>); }...};
}

}  // namespace

ScheduleForm schedule_of(ScheduleType type) {
  constexpr size_t kNumForms = std::variant_size_v<ScheduleForm>;
  static_assert(kNumForms == choice_words(ScheduleType()).size());
  static constexpr auto kMakers = makers_of_forms(std::make_index_sequence<kNumForms>());
  return kMakers[static_cast<size_t>(type)]();
}

void Schedule::observe_metric(double, bool) {}

std::optional<PlateauState> Schedule::plateau() const { return std::nullopt; }

void Schedule::restore(const PlateauState&) {}

std::optional<AdamBetas> Schedule::betas(int64_t) const { return std::nullopt; }

std::unique_ptr<Schedule> make_schedule(const ScheduleOptions& options) {
  return std::visit([&](const auto& form) { return make_schedule(form, options); }, options.form);
}

std::unique_ptr<Schedule> make_schedule(const ScheduleSpec& spec, int64_t num_training_steps) {
  return make_schedule(ScheduleOptions{spec.form, spec.learning_rate,
                                       spec.num_warmup_steps(num_training_steps), num_training_steps});
}

bool ScheduleSpec::needs_evaluations() const { return std::holds_alternative<ReduceLrOnPlateau>(form); }

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
