#include "cli/terminal/loss_trend.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>

namespace tessera {
namespace {

constexpr int64_t kMinLosses = 8, kMaxLosses = 64;

struct Moments {
  double mean;
  double variance_of_mean;
};

template <typename Iterator>
Moments moments(Iterator begin, Iterator end) {
  const auto count = static_cast<double>(end - begin);
  double sum = 0, squares = 0;
  for (Iterator it = begin; it != end; ++it) sum += *it;
  const double mean = sum / count;
  for (Iterator it = begin; it != end; ++it) squares += (*it - mean) * (*it - mean);
  return {mean, squares / (count - 1) / count};
}

}  // namespace

void LossTrend::add(double loss) {
  if (!std::isfinite(loss)) return;
  if (std::ssize(losses_) == kMaxLosses) losses_.pop_front();
  losses_.push_back(loss);
}

std::optional<LossTrend::Change> LossTrend::measured() const {
  if (std::ssize(losses_) < kMinLosses) return std::nullopt;
  const auto middle = losses_.begin() + std::ssize(losses_) / 2;
  const Moments older = moments(losses_.begin(), middle);
  const Moments newer = moments(middle, losses_.end());
  return Change{newer.mean - older.mean, std::sqrt(older.variance_of_mean + newer.variance_of_mean)};
}

std::optional<double> LossTrend::change() const {
  const std::optional<Change> change = measured();
  return change ? std::optional(change->value) : std::nullopt;
}

Trend LossTrend::trend() const {
  const std::optional<Change> change = measured();
  if (!change) return Trend::kUnknown;
  if (std::abs(change->value) <= 2 * change->standard_error) return Trend::kLevel;
  return change->value < 0 ? Trend::kFalling : Trend::kRising;
}

}  // namespace tessera
