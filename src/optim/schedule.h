// Learning-rate schedules of Hugging Face's Trainer (transformers/optimization.py): lr(step) = learning_rate
// * lambda(s) with s completed optimizer steps; and those of DeepSpeed (deepspeed_schedule.cc).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "optim/schedule_form.h"

namespace tessera {

struct ScheduleSpec {
  double learning_rate = 5e-5;
  ScheduleForm form = {};
  double warmup_steps = 0;
  std::optional<double> warmup_ratio;

  // Hugging Face's get_warmup_steps: warmup_steps when above 0, else the ratio, rounded up.
  int64_t num_warmup_steps(int64_t num_training_steps) const;
  // Whether the rate follows what evaluations find.
  bool needs_evaluations() const;
};

struct ScheduleOptions {
  ScheduleForm form = {};
  double learning_rate = 5e-5;
  int64_t num_warmup_steps = 0;
  int64_t num_training_steps = 0;
};

struct AdamBetas {
  double beta1;
  double beta2;
};

// State that reduce_lr_on_plateau accumulates from evaluations.
struct PlateauState {
  double learning_rate = 0;
  std::optional<double> best;  // metric; nullopt before the first evaluation
  int64_t num_bad = 0;         // evaluations since the best one, or since the rate was last reduced
  int64_t cooldown_left = 0;
};

class Schedule {
 public:
  virtual ~Schedule() = default;
  // The rate of optimizer step `step` (0-based).
  virtual double learning_rate(int64_t step) const = 0;
  // OneCycle only: the betas of optimizer step `step`. Other schedules leave the optimizer's betas alone.
  virtual std::optional<AdamBetas> betas(int64_t step) const;
  // reduce_lr_on_plateau only: takes the metric of an evaluation. Others ignore it.
  virtual void observe_metric(double metric, bool greater_is_better);
  // reduce_lr_on_plateau only; others depend only on the step.
  virtual std::optional<PlateauState> plateau() const;
  virtual void restore(const PlateauState& state);
};

// kBadConfig for settings that contradict the learning rate.
std::unique_ptr<Schedule> make_schedule(const ScheduleOptions& options);
std::unique_ptr<Schedule> make_schedule(const ScheduleSpec& spec, int64_t num_training_steps);

}  // namespace tessera
