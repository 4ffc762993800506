#include "train/evaluation/best_model.h"

#include <cmath>
#include <variant>

#include "base/error.h"

namespace tessera {

BestModelRule::BestModelRule(const EvaluationSpec& evaluation)
    : metric_(evaluation.metric),
      greater_is_better_(evaluation.greater_is_better.value_or(false)),
      patience_(evaluation.early_stopping_patience),
      threshold_(evaluation.early_stopping_threshold) {}

bool BestModelRule::observe(const LogEntry& evaluation, int64_t step, BestModel* best) const {
  if (metric_.empty()) return false;
  const std::optional<double> found = value_of(evaluation, metric_);
  TESSERA_CHECK(found.has_value(), "an evaluation without {}", metric_);
  const double value = *found;
  const bool is_best = is_better(value, best->value);
  // The threshold is of early stopping alone; the first evaluation counts as better in any case.
  const bool is_enough = !best->value || (is_best && std::abs(value - *best->value) > threshold_);
  best->num_not_better = is_enough ? 0 : best->num_not_better + 1;
  if (!is_best) return false;
  best->metric = metric_;
  best->greater_is_better = greater_is_better_;
  best->value = value;
  best->step = step;
  return true;
}

bool BestModelRule::is_better(double value, std::optional<double> than) const {
  if (!std::isfinite(value) || !than) return std::isfinite(value);
  return greater_is_better_ ? value > *than : value < *than;
}

std::optional<double> value_of(const LogEntry& entry, const std::string& name) {
  for (const auto& [of, value] : entry.values) {
    if (of == name) return std::visit([](auto number) { return static_cast<double>(number); }, value);
  }
  return std::nullopt;
}

}  // namespace tessera
