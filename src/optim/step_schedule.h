// Schedules that depend on the step alone, and the factory of DeepSpeed's (deepspeed_schedule.cc).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <utility>

#include "optim/schedule.h"

namespace tessera {

using RateOfStep = std::function<double(int64_t step)>;

// A factor times a function of the step.
class StepSchedule final : public Schedule {
 public:
  StepSchedule(double factor, RateOfStep rate) : factor_(factor), rate_(std::move(rate)) {}
  double learning_rate(int64_t step) const override { return factor_ * rate_(step); }

 private:
  double factor_;
  RateOfStep rate_;
};

// DeepSpeed counts i = -1 before the first step and advances the schedule after every optimizer step, so
// optimizer step n (0-based) uses the rate of i = n - 1: the first two steps of a warm-up have the minimum.
std::unique_ptr<Schedule> make_schedule(const WarmupLR& form, const ScheduleOptions& run);
std::unique_ptr<Schedule> make_schedule(const WarmupDecayLR& form, const ScheduleOptions& run);
std::unique_ptr<Schedule> make_schedule(const WarmupCosineLR& form, const ScheduleOptions& run);
std::unique_ptr<Schedule> make_schedule(const LRRangeTest& form, const ScheduleOptions& run);
std::unique_ptr<Schedule> make_schedule(const OneCycle& form, const ScheduleOptions& run);

}  // namespace tessera
