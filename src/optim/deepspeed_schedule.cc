#include <algorithm>
#include <cmath>
#include <numbers>
#include <optional>

#include "base/error.h"
#include "optim/schedule_keywords.h"

namespace tessera {
namespace {

// Common to WarmupLR, WarmupDecayLR and WarmupCosineLR: gamma rises from 0 at i = 0 to 1 at i = W.
struct Warmup {
  int64_t num_steps;  // W, at least 2
  bool logarithmic;

  double gamma(int64_t i) const {
    const double done = static_cast<double>(i), all = static_cast<double>(num_steps);
    return logarithmic ? std::log(done + 1) / std::log(all) : done / all;
  }
};

// DeepSpeed treats an unknown warmup_type as "log"; here it is an error.
Warmup read_warmup(const ScheduleOptions& o, Keywords& keywords) {
  constexpr int64_t kDefaultSteps = 1000;
  const bool is_auto = keywords.is_auto("warmup_num_steps");
  const int64_t given =
      is_auto ? o.num_warmup_steps : keywords.count("warmup_num_steps").value_or(kDefaultSteps);
  return {std::max<int64_t>(2, given), keywords.choice("warmup_type", {"log", "linear"}) == "log"};
}

int64_t read_total_steps(const ScheduleOptions& o, Keywords& keywords) {
  if (keywords.is_auto("total_num_steps")) return o.num_training_steps;
  const std::optional<int64_t> total = keywords.count("total_num_steps");
  if (!total) {
    fail(ExitCode::kBadConfig,
         "lr_scheduler_kwargs: lr_scheduler_type {} needs total_num_steps: a number, or \"auto\" for the "
         "steps of the run",
         o.type);
  }
  return *total;
}

double read_rate(Keywords& keywords, const std::string& name, double auto_value, double otherwise) {
  return keywords.is_auto(name) ? auto_value : keywords.number(name, otherwise);
}

double required_number(const ScheduleOptions& o, Keywords& keywords, const std::string& name) {
  const std::optional<double> value = keywords.number(name);
  if (!value) fail(ExitCode::kBadConfig, "lr_scheduler_kwargs: lr_scheduler_type {} needs {}", o.type, name);
  return *value;
}

int64_t positive_count(Keywords& keywords, const std::string& name, int64_t otherwise) {
  const int64_t value = keywords.count(name).value_or(otherwise);
  if (value < 1) keywords.refuse(name, "a whole number of at least 1", value);
  return value;
}

// From the minimum to the maximum, then what `after` makes of it.
template <typename After>
RateOfStep warmed_up(const ScheduleOptions& o, Keywords& keywords, double default_maximum,
                     const Warmup& warmup, const After& after) {
  const double minimum = read_rate(keywords, "warmup_min_lr", 0, 0);
  const double maximum = read_rate(keywords, "warmup_max_lr", o.learning_rate, default_maximum);
  return [=](int64_t step) {
    const int64_t i = step - 1;
    if (i < 0) return minimum;
    return minimum + (maximum - minimum) * (i < warmup.num_steps ? warmup.gamma(i) : after(i));
  };
}

RateOfStep warmup_lr(const ScheduleOptions& o, Keywords& keywords) {
  return warmed_up(o, keywords, o.learning_rate, read_warmup(o, keywords), [](int64_t) { return 1.0; });
}

RateOfStep warmup_decay_lr(const ScheduleOptions& o, Keywords& keywords) {
  const Warmup warmup = read_warmup(o, keywords);
  const int64_t total = read_total_steps(o, keywords);
  return warmed_up(o, keywords, /*default_maximum=*/1e-3, warmup, [=](int64_t i) {
    const int64_t decay_steps = std::max<int64_t>(1, total - warmup.num_steps);
    return std::max(0.0, static_cast<double>(total - i) / static_cast<double>(decay_steps));
  });
}

RateOfStep warmup_cosine_lr(const ScheduleOptions& o, Keywords& keywords) {
  const Warmup warmup = read_warmup(o, keywords);
  const int64_t total = read_total_steps(o, keywords);
  const double first_ratio = keywords.number("warmup_min_ratio", 0);
  const double last_ratio = keywords.number("cos_min_ratio", 1e-4);
  return [=, learning_rate = o.learning_rate](int64_t step) {
    const int64_t i = step - 1;
    if (i < 0) return 0.0;
    if (i < warmup.num_steps) return learning_rate * (first_ratio + (1 - first_ratio) * warmup.gamma(i));
    const int64_t decay_steps = std::max<int64_t>(1, total - warmup.num_steps);
    const double progress =
        std::min(1.0, static_cast<double>(i - warmup.num_steps + 1) / static_cast<double>(decay_steps));
    const double cosine = 0.5 * (1 + std::cos(std::numbers::pi * progress));
    return learning_rate * std::max(0.0, last_ratio + (1 - last_ratio) * cosine);
  };
}

// lr = min_lr * (1 + rate * (i + 1) / size); as a staircase the quotient is rounded down.
RateOfStep lr_range_test(const ScheduleOptions&, Keywords& keywords) {
  const double first = keywords.number("lr_range_test_min_lr", 1e-3);
  const int64_t step_size = positive_count(keywords, "lr_range_test_step_size", 2000);
  const double step_rate = keywords.number("lr_range_test_step_rate", 1);
  const bool staircase = keywords.boolean("lr_range_test_staircase").value_or(false);
  return [=](int64_t step) {
    const double interval = static_cast<double>(step) / static_cast<double>(step_size);
    return first * (1 + step_rate * (staircase ? std::floor(interval) : interval));
  };
}

// Goes from cycle_min_lr up to cycle_max_lr and back down once, then decays. beta1 moves the opposite way.
// With k = i + 1 completed steps, scale(k) = k / first or (first + second - k) / second.
class OneCycle : public Schedule {
 public:
  OneCycle(const ScheduleOptions& o, Keywords& keywords)
      : min_lr_(required_number(o, keywords, "cycle_min_lr")),
        max_lr_(required_number(o, keywords, "cycle_max_lr")),
        decay_lr_rate_(keywords.number("decay_lr_rate", 0)),
        first_size_(positive_count(keywords, "cycle_first_step_size", 2000)),
        second_size_(keywords.count("cycle_second_step_size").value_or(first_size_)),
        first_stairs_(keywords.count("cycle_first_stair_count").value_or(0)),
        second_stairs_(keywords.count("cycle_second_stair_count").value_or(first_stairs_)),
        decay_step_size_(keywords.count("decay_step_size").value_or(0)),
        cycle_momentum_(keywords.boolean("cycle_momentum").value_or(true)),
        min_momentum_(read_momentum(keywords, "cycle_min_mom", 0.8)),
        max_momentum_(read_momentum(keywords, "cycle_max_mom", 0.9)),
        decay_momentum_rate_(keywords.number("decay_mom_rate", 0)) {}

  double learning_rate(int64_t step) const override {
    if (is_in_cycle(step)) return min_lr_ + (max_lr_ - min_lr_) * scale(step);
    return min_lr_ / (1 + decay_lr_rate_ * decay_intervals(step));
  }

  // DeepSpeed sets the lower momentum before the first step, and beta2 = 0.99 throughout.
  std::optional<AdamBetas> betas(int64_t step) const override {
    constexpr double kBeta2 = 0.99;
    if (!cycle_momentum_) return std::nullopt;
    if (step == 0) return AdamBetas{min_momentum_, kBeta2};
    if (is_in_cycle(step))
      return AdamBetas{max_momentum_ - (max_momentum_ - min_momentum_) * scale(step), kBeta2};
    const double grown = max_momentum_ * (1 + decay_momentum_rate_ * decay_intervals(step));
    if (!(grown < 1)) {
      fail(ExitCode::kBadConfig,
           "lr_scheduler_kwargs: decay_mom_rate {} of lr_scheduler_type OneCycle brings beta1 to {} at step "
           "{}: it must stay below 1; lower decay_mom_rate",
           decay_momentum_rate_, grown, step + 1);
    }
    return AdamBetas{grown, kBeta2};
  }

 private:
  static double read_momentum(Keywords& keywords, const std::string& name, double otherwise) {
    const double value = keywords.number(name, otherwise);
    if (!(value >= 0 && value < 1)) keywords.refuse(name, "a number from 0 to below 1", value);
    return value;
  }

  bool is_in_cycle(int64_t step) const { return step - 1 < first_size_ + second_size_; }

  double decay_intervals(int64_t step) const {
    if (decay_step_size_ == 0) return 0;
    return static_cast<double>(step - first_size_ - second_size_) / static_cast<double>(decay_step_size_);
  }

  double scale(int64_t step) const {
    const int64_t k = step % (first_size_ + second_size_);
    const bool rising = k <= first_size_;
    const auto done = static_cast<double>(rising ? k : first_size_ + second_size_ - k);
    const auto size = static_cast<double>(rising ? first_size_ : second_size_);
    const auto stairs = static_cast<double>(rising ? first_stairs_ : second_stairs_);
    return stairs > 0 ? std::floor(done * stairs / size) / stairs : done / size;
  }

  double min_lr_;
  double max_lr_;
  double decay_lr_rate_;
  int64_t first_size_;
  int64_t second_size_;
  int64_t first_stairs_;  // 0: the rate changes with every step
  int64_t second_stairs_;
  int64_t decay_step_size_;
  bool cycle_momentum_;
  double min_momentum_;
  double max_momentum_;
  double decay_momentum_rate_;
};

}  // namespace

std::unique_ptr<Schedule> make_deepspeed_schedule(const ScheduleOptions& options, Keywords& keywords) {
  const auto of_step = [&](RateOfStep (*make)(const ScheduleOptions&, Keywords&)) {
    return std::make_unique<StepSchedule>(1, make(options, keywords));
  };
  switch (options.type) {
    case ScheduleType::kWarmupLR:
      return of_step(warmup_lr);
    case ScheduleType::kWarmupDecayLR:
      return of_step(warmup_decay_lr);
    case ScheduleType::kWarmupCosineLR:
      return of_step(warmup_cosine_lr);
    case ScheduleType::kLRRangeTest:
      return of_step(lr_range_test);
    case ScheduleType::kOneCycle:
      return std::make_unique<OneCycle>(options, keywords);
    default:
      return nullptr;
  }
}

}  // namespace tessera
