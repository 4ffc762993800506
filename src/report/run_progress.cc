#include "report/run_progress.h"

#include <cmath>
#include <iterator>
#include <span>

#include "base/median.h"

namespace tessera {
namespace {

constexpr size_t kMaxSpeeds = 21;
constexpr int64_t kMinLosses = 8, kMaxLosses = 64;

struct Moments {
  double mean;
  double variance_of_mean;
};

Moments moments(std::span<const double> values) {
  const auto count = static_cast<double>(values.size());
  double sum = 0, squares = 0;
  for (const double value : values) sum += value;
  const double mean = sum / count;
  for (const double value : values) squares += (value - mean) * (value - mean);
  return {mean, squares / (count - 1) / count};
}

}  // namespace

void ProgressMeter::add_loss(double loss) {
  if (!std::isfinite(loss)) return;
  if (std::ssize(losses_) == kMaxLosses) losses_.erase(losses_.begin());
  losses_.push_back(loss);
  if (std::ssize(losses_) < kMinLosses) return;
  const std::span<const double> all = losses_;
  const Moments older = moments(all.first(all.size() / 2)), newer = moments(all.subspan(all.size() / 2));
  const double change = newer.mean - older.mean;
  const bool may_be_noise =
      std::abs(change) <= 2 * std::sqrt(older.variance_of_mean + newer.variance_of_mean);
  progress_.loss_change = change;
  progress_.trend = may_be_noise ? Trend::kLevel : change < 0 ? Trend::kFalling : Trend::kRising;
}

void ProgressMeter::add(const StepMetrics& step) {
  if (++num_steps_ == 2 || speeds_.size() == kMaxSpeeds) speeds_.pop_front();
  speeds_.emplace_back(step.tokens_per_second, step.tflops);
  std::vector<double> tokens_per_second, tflops;
  for (const auto& [tokens, flops] : speeds_) {
    tokens_per_second.push_back(tokens);
    tflops.push_back(flops);
  }
  if (!step.skipped) add_loss(step.loss);
  if (step.peak) peak_tflops_ = step.peak->tflops;
  progress_.step = step.step;
  progress_.loss = step.loss;
  progress_.learning_rate = step.learning_rate;
  progress_.tokens_per_second = median(std::move(tokens_per_second));
  progress_.tflops = median(std::move(tflops));
  if (peak_tflops_ && *peak_tflops_ > 0) progress_.mfu = progress_.tflops / *peak_tflops_;
  progress_.eta_s = step.eta_s;
}

}  // namespace tessera
