#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "base/error.h"
#include "optim/step_schedule.h"

namespace tessera {
namespace {

// Common to WarmupLR, WarmupDecayLR and WarmupCosineLR: gamma rises from 0 at i = 0 to 1 at i = W.
struct Warmup {
  int64_t num_steps;  // W, at least 2
  bool is_logarithmic;

  Warmup(const DeepSpeedWarmup& form, const ScheduleOptions& run)
      : num_steps(std::max<int64_t>(2, form.num_steps.value_or(run.num_warmup_steps))),
        is_logarithmic(form.is_logarithmic) {}

  double gamma(int64_t i) const {
    const double done = static_cast<double>(i), all = static_cast<double>(num_steps);
    return is_logarithmic ? std::log(done + 1) / std::log(all) : done / all;
  }
};

// From the minimum to the maximum, then what `after` makes of it.
template <typename Form, typename After>
std::unique_ptr<Schedule> warmed_up(const Form& form, const ScheduleOptions& run, const After& after) {
  const double minimum = form.min_lr, maximum = form.max_lr.value_or(run.learning_rate);
  return std::make_unique<StepSchedule>(1, [=, warmup = Warmup(form.warmup, run)](int64_t step) {
    const int64_t i = step - 1;
    if (i < 0) return minimum;
    return minimum + (maximum - minimum) * (i < warmup.num_steps ? warmup.gamma(i) : after(i));
  });
}

// Rises from cycle_min_lr to cycle_max_lr and back once, then decays. beta1 moves the opposite way. k = i + 1
// completed steps give scale(k) = k / first or (first + second - k) / second.
class OneCycleSchedule : public Schedule {
 public:
  explicit OneCycleSchedule(const OneCycle& form) : form_(form) {}

  double learning_rate(int64_t step) const override {
    if (is_in_cycle(step)) return form_.min_lr + (form_.max_lr - form_.min_lr) * scale(step);
    return form_.min_lr / (1 + form_.decay_lr_rate * decay_intervals(step));
  }

  // DeepSpeed sets the lower momentum before the first step, and beta2 = 0.99 throughout.
  std::optional<AdamBetas> betas(int64_t step) const override {
    constexpr double kBeta2 = 0.99;
    if (!form_.cycles_momentum) return std::nullopt;
    if (step == 0) return AdamBetas{form_.min_momentum, kBeta2};
    if (is_in_cycle(step))
      return AdamBetas{form_.max_momentum - (form_.max_momentum - form_.min_momentum) * scale(step), kBeta2};
    const double grown = form_.max_momentum * (1 + form_.decay_momentum_rate * decay_intervals(step));
    if (!(grown < 1)) {
      fail(ExitCode::kBadConfig,
           "lr_scheduler_kwargs: decay_mom_rate {} of lr_scheduler_type OneCycle brings beta1 to {} at step "
           "{}: it must stay below 1; lower decay_mom_rate",
           form_.decay_momentum_rate, grown, step + 1);
    }
    return AdamBetas{grown, kBeta2};
  }

 private:
  bool is_in_cycle(int64_t step) const { return step - 1 < form_.first_size + form_.second_size; }

  double decay_intervals(int64_t step) const {
    if (form_.decay_step_size == 0) return 0;
    return static_cast<double>(step - form_.first_size - form_.second_size) /
           static_cast<double>(form_.decay_step_size);
  }

  double scale(int64_t step) const {
    const int64_t k = step % (form_.first_size + form_.second_size);
    const bool rising = k <= form_.first_size;
    const auto done = static_cast<double>(rising ? k : form_.first_size + form_.second_size - k);
    const auto size = static_cast<double>(rising ? form_.first_size : form_.second_size);
    const auto stairs = static_cast<double>(rising ? form_.first_stairs : form_.second_stairs);
    return stairs > 0 ? std::floor(done * stairs / size) / stairs : done / size;
  }

  const OneCycle form_;
};

}  // namespace

std::unique_ptr<Schedule> make_schedule(const WarmupLR& form, const ScheduleOptions& run) {
  return warmed_up(form, run, [](int64_t) { return 1.0; });
}

std::unique_ptr<Schedule> make_schedule(const WarmupDecayLR& form, const ScheduleOptions& run) {
  const int64_t total = form.total_steps.value_or(run.num_training_steps);
  const int64_t decay_steps = std::max<int64_t>(1, total - Warmup(form.warmup, run).num_steps);
  return warmed_up(form, run, [=](int64_t i) {
    return std::max(0.0, static_cast<double>(total - i) / static_cast<double>(decay_steps));
  });
}

std::unique_ptr<Schedule> make_schedule(const WarmupCosineLR& form, const ScheduleOptions& run) {
  const Warmup warmup(form.warmup, run);
  const int64_t total = form.total_steps.value_or(run.num_training_steps);
  return std::make_unique<StepSchedule>(1, [=, learning_rate = run.learning_rate](int64_t step) {
    const int64_t i = step - 1;
    if (i < 0) return 0.0;
    if (i < warmup.num_steps)
      return learning_rate * (form.first_ratio + (1 - form.first_ratio) * warmup.gamma(i));
    const int64_t decay_steps = std::max<int64_t>(1, total - warmup.num_steps);
    const double progress =
        std::min(1.0, static_cast<double>(i - warmup.num_steps + 1) / static_cast<double>(decay_steps));
    const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * progress));
    return learning_rate * std::max(0.0, form.last_ratio + (1 - form.last_ratio) * cosine);
  });
}

// lr = min_lr * (1 + rate * (i + 1) / size); as a staircase the quotient is rounded down.
std::unique_ptr<Schedule> make_schedule(const LRRangeTest& form, const ScheduleOptions&) {
  return std::make_unique<StepSchedule>(1, [=](int64_t step) {
    const double interval = static_cast<double>(step) / static_cast<double>(form.step_size);
    return form.min_lr * (1 + form.step_rate * (form.is_staircase ? std::floor(interval) : interval));
  });
}

std::unique_ptr<Schedule> make_schedule(const OneCycle& form, const ScheduleOptions&) {
  return std::make_unique<OneCycleSchedule>(form);
}

}  // namespace tessera
