// The best evaluation of a run, and the decision to stop a run early that finds no better one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "report/progress.h"
#include "report/trainer_state.h"
#include "settings/run_settings.h"

namespace tessera {

// The metric that models are compared by, as Hugging Face's Trainer does: _determine_best_metric and
// EarlyStoppingCallback.
class BestModelRule {
 public:
  // Without metric_for_best_model nothing is ever best.
  explicit BestModelRule(const EvaluationSpec& evaluation);

  // "eval_loss"; "" = none.
  const std::string& metric() const { return metric_; }
  bool greater_is_better() const { return greater_is_better_; }

  // Takes in the evaluation after `step` steps. True if it is the best so far.
  bool observe(const LogEntry& evaluation, int64_t step, BestModel* best) const;
  // True if `value` is better than this one, or finite if there is none.
  bool is_better(double value, std::optional<double> than) const;
  // Whether as many evaluations in a row as early_stopping_patience allows were not better.
  bool stops(const BestModel& best) const { return patience_ && best.num_not_better >= *patience_; }

 private:
  std::string metric_;
  bool greater_is_better_;
  std::optional<int64_t> patience_;
  double threshold_;
};

// The value of this name; nullopt if the entry has none.
std::optional<double> value_of(const LogEntry& entry, const std::string& name);

}  // namespace tessera
