#include "plan/step_actions.h"

#include <algorithm>
#include <cmath>

#include "settings/derived.h"

namespace tessera {

ActionSchedule::ActionSchedule(const RunSpec& spec, int64_t steps_per_epoch, int64_t max_steps)
    : logging_strategy_(spec.reporting.logging_strategy),
      eval_strategy_(spec.evaluation.strategy),
      save_strategy_(spec.saving.strategy),
      logging_first_step_(spec.reporting.logging_first_step),
      eval_delay_(spec.evaluation.delay),
      steps_per_epoch_(steps_per_epoch),
      max_steps_(max_steps),
      logging_steps_(interval_in_steps(spec.reporting.logging_steps, max_steps)),
      // Hugging Face's trainer_state.json has 500 if eval_steps was never set.
      eval_steps_(interval_in_steps(spec.evaluation.steps.value_or(500), max_steps)),
      save_steps_(interval_in_steps(spec.saving.steps, max_steps)),
      peer_snapshot_steps_(spec.saving.peer_snapshot_steps) {}

StepActions ActionSchedule::after(int64_t step) const {
  const bool epoch_ends = step % steps_per_epoch_ == 0 || step == max_steps_;
  StepActions due;
  due.log = (logging_strategy_ == IntervalStrategy::kSteps && step % logging_steps_ == 0) ||
            (logging_strategy_ == IntervalStrategy::kEpoch && epoch_ends) ||
            (logging_first_step_ && step == 1);
  due.evaluate = evaluates_after(step, epoch_ends);
  due.save = (save_strategy_ == SaveStrategy::kSteps && (step % save_steps_ == 0 || step == max_steps_)) ||
             (save_strategy_ == SaveStrategy::kEpoch && epoch_ends);
  due.snapshot = peer_snapshot_steps_ > 0 && step % peer_snapshot_steps_ == 0;
  return due;
}

int64_t ActionSchedule::num_saves(int64_t first_step) const {
  if (save_strategy_ == SaveStrategy::kNo || first_step >= max_steps_) return 0;
  const bool is_best = save_strategy_ == SaveStrategy::kBest;
  const bool by_epoch =
      is_best ? eval_strategy_ == IntervalStrategy::kEpoch : save_strategy_ == SaveStrategy::kEpoch;
  const int64_t interval = by_epoch ? steps_per_epoch_ : is_best ? eval_steps_ : save_steps_;
  return (max_steps_ + interval - 1) / interval - first_step / interval;
}

int64_t ActionSchedule::num_evaluations(int64_t first_step) const {
  const bool by_epoch = eval_strategy_ == IntervalStrategy::kEpoch;
  if (eval_strategy_ == IntervalStrategy::kNo) return 0;
  const int64_t interval = by_epoch ? steps_per_epoch_ : eval_steps_;
  const double delay_steps = by_epoch ? eval_delay_ * static_cast<double>(steps_per_epoch_) : eval_delay_;
  if (delay_steps > static_cast<double>(max_steps_)) return 0;
  first_step = std::max(first_step, static_cast<int64_t>(std::ceil(delay_steps)) - 1);
  if (first_step >= max_steps_) return 0;
  // The last step is one in any case.
  return (max_steps_ + interval - 1) / interval - first_step / interval;
}

ActionCounts ActionSchedule::counts_after(int64_t first_step) const {
  ActionCounts counts = {num_evaluations(first_step), num_saves(first_step)};
  if (peer_snapshot_steps_ > 0)
    counts.snapshots = max_steps_ / peer_snapshot_steps_ - first_step / peer_snapshot_steps_;
  return counts;
}

bool ActionSchedule::evaluates_after(int64_t step, bool epoch_ends) const {
  if (eval_strategy_ == IntervalStrategy::kSteps) {
    return (step % eval_steps_ == 0 || step == max_steps_) && eval_delay_ <= static_cast<double>(step);
  }
  const double epoch = static_cast<double>(step) / static_cast<double>(steps_per_epoch_);
  return eval_strategy_ == IntervalStrategy::kEpoch && epoch_ends && eval_delay_ <= epoch;
}

}  // namespace tessera
