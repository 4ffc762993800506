// Learning-rate schedules of DeepSpeed (deepspeed/runtime/lr_schedules.py): WarmupLR, WarmupDecayLR,
// WarmupCosineLR, LRRangeTest, OneCycle. Their parameters are passed as lr_scheduler_kwargs.
//
// DeepSpeed counts i = -1 before the first step and advances the schedule after every optimizer step, so
// optimizer step n (0-based) uses the rate of i = n - 1: the first two steps of a warm-up have the minimum.
//
// "auto" takes the value that Hugging Face's Trainer fills in: warmup_min_lr 0, warmup_max_lr the learning
// rate, total_num_steps and warmup_num_steps those of the run.
#pragma once

#include <memory>

#include "optim/schedule.h"
#include "optim/schedule_keywords.h"

namespace tessera {

// nullptr if the type is not one of DeepSpeed's. kBadConfig for missing or wrong parameters.
std::unique_ptr<Schedule> make_deepspeed_schedule(const ScheduleOptions& options, Keywords& keywords);

}  // namespace tessera
