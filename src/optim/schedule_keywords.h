// What the schedules are made of: the keywords of lr_scheduler_kwargs as they read them, and how those that
// depend on the step alone are described.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "optim/schedule.h"

namespace tessera {

// Every getter marks its name as known to the schedule; done() rejects the rest. A null counts as absent,
// like None in Python. Errors are kBadConfig and name schedule and keyword.
class Keywords {
 public:
  // `text`: a JSON object, "" = none.
  Keywords(ScheduleType schedule, const std::string& text);

  std::optional<double> number(const std::string& name);
  double number(const std::string& name, double otherwise) { return number(name).value_or(otherwise); }
  std::optional<int64_t> count(const std::string& name);
  std::optional<bool> boolean(const std::string& name);
  // The first choice if absent.
  std::string choice(const std::string& name, const std::vector<std::string>& choices);
  bool has(const std::string& name) { return find(name) != nullptr; }
  // Whether the value is "auto", which stands for a value derived from the run.
  bool is_auto(const std::string& name);

  void done() const;
  [[noreturn]] void refuse(const std::string& name, const std::string& expected,
                           const nlohmann::json& found) const;

 private:
  const nlohmann::json* find(const std::string& name);

  ScheduleType schedule_;
  nlohmann::json values_ = nlohmann::json::object();
  std::vector<std::string> known_;
};

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

// Schedules of DeepSpeed (deepspeed/runtime/lr_schedules.py): WarmupLR, WarmupDecayLR, WarmupCosineLR,
// LRRangeTest, OneCycle; nullptr for another type. kBadConfig for missing or wrong parameters.
//
// DeepSpeed counts i = -1 before the first step and advances the schedule after every optimizer step, so
// optimizer step n (0-based) uses the rate of i = n - 1: the first two steps of a warm-up have the minimum.
//
// "auto" takes the value that Hugging Face's Trainer fills in: warmup_min_lr 0, warmup_max_lr the learning
// rate, total_num_steps and warmup_num_steps those of the run.
std::unique_ptr<Schedule> make_deepspeed_schedule(const ScheduleOptions& options, Keywords& keywords);

}  // namespace tessera
