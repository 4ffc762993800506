// Actions due after an optimizer step: logging, evaluating, saving. Follows DefaultFlowCallback in Hugging
// Face's Trainer.
#pragma once

#include <cstdint>

#include "settings/run_spec.h"

namespace tessera {

struct StepActions {
  bool log = false;
  bool evaluate = false;
  bool save = false;
  bool snapshot = false;  // of all ranks, in memory
};

// Number of times each lengthy action is due.
struct ActionCounts {
  int64_t evaluations = 0;
  int64_t saves = 0;
  int64_t snapshots = 0;
};

class ActionSchedule {
 public:
  ActionSchedule(const RunSpec& spec, int64_t steps_per_epoch, int64_t max_steps);

  // Actions due after `step` completed steps (from 1). The end of a run inside an epoch counts as the end of
  // that epoch.
  StepActions after(int64_t step) const;

  // Number of checkpoints after `first_step`, up to the end of the run; with save_strategy best at most as
  // many as there are evaluations.
  int64_t num_saves(int64_t first_step) const;
  // Counts of all lengthy actions after `first_step`.
  ActionCounts counts_after(int64_t first_step) const;

  // Number of evaluations in the first `step` steps.
  int64_t evaluations_up_to(int64_t step) const { return num_evaluations(0) - num_evaluations(step); }

  int64_t logging_steps() const { return logging_steps_; }
  int64_t eval_steps() const { return eval_steps_; }
  int64_t save_steps() const { return save_steps_; }

 private:
  bool evaluates_after(int64_t step, bool epoch_ends) const;
  int64_t num_evaluations(int64_t first_step) const;

  IntervalStrategy logging_strategy_, eval_strategy_;
  SaveStrategy save_strategy_;
  bool logging_first_step_;
  double eval_delay_;
  int64_t steps_per_epoch_, max_steps_;
  int64_t logging_steps_, eval_steps_, save_steps_, peer_snapshot_steps_;
};

}  // namespace tessera
