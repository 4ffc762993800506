// Learning-rate schedules of DeepSpeed (deepspeed/runtime/lr_schedules.py): WarmupLR, WarmupDecayLR,
// WarmupCosineLR, LRRangeTest, OneCycle. Their parameters come as lr_scheduler_kwargs.
//
// DeepSpeed counts i = -1 before the first step and steps the schedule after every optimizer step, so that
// optimizer step n (0-based) has the rate of i = n - 1: the first two steps of a warm-up have the minimum.
//
// "auto" is what Hugging Face's Trainer fills in: warmup_min_lr 0, warmup_max_lr the learning rate,
// total_num_steps and warmup_num_steps those of the run.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "optim/schedule.h"
#include "optim/schedule_keywords.h"

namespace tessera {

// nullptr when the type is none of DeepSpeed's. kBadConfig for missing or wrong parameters.
std::unique_ptr<Schedule> make_deepspeed_schedule(const ScheduleOptions& options, Keywords& keywords);
std::vector<std::string> deepspeed_schedule_names();

}  // namespace tessera
