#include "train/guards/loss_spike.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "base/error.h"

namespace tessera {

// The deviation is torch.std's, with n - 1.
std::optional<LossSpike> LossSpikeDetector::judge(const char* what, const std::vector<double>& before,
                                                  double value) const {
  if (std::ssize(before) < std::max<int64_t>(2, options_.window / 2)) return std::nullopt;
  const auto count = static_cast<double>(before.size());
  const double mean = std::reduce(before.begin(), before.end()) / count;
  const double squares = std::accumulate(before.begin(), before.end(), 0.0, [mean](double sum, double one) {
    return sum + (one - mean) * (one - mean);
  });
  const double deviation = std::sqrt(squares / (count - 1));
  if (value - mean <= options_.sigmas * deviation) return std::nullopt;
  return LossSpike{what, value, mean, deviation};
}

std::optional<LossSpike> LossSpikeDetector::observe(double loss, double grad_norm) {
  std::optional<LossSpike> spike = judge("loss", history_.losses, loss);
  if (!spike) spike = judge("gradient norm", history_.grad_norms, grad_norm);
  for (auto [values, value] :
       {std::pair(&history_.losses, loss), std::pair(&history_.grad_norms, grad_norm)}) {
    if (std::ssize(*values) == options_.window) values->erase(values->begin());
    values->push_back(value);
  }
  return spike;
}

void LossSpikeDetector::restore(LossSpikeHistory history) {
  TESSERA_CHECK(history.losses.size() == history.grad_norms.size(), "{} losses, {} gradient norms",
                history.losses.size(), history.grad_norms.size());
  const int64_t excess = std::ssize(history.losses) - options_.window;
  for (std::vector<double>* values : {&history.losses, &history.grad_norms}) {
    if (excess > 0) values->erase(values->begin(), values->begin() + excess);
  }
  history_ = std::move(history);
  for (std::vector<double>* values : {&history_.losses, &history_.grad_norms}) {
    values->reserve(static_cast<size_t>(options_.window));  // so that observe() allocates nothing
  }
}

}  // namespace tessera
