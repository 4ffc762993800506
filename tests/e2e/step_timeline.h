// When the steps of a run were finished, seen from outside, and how a run that is killed repeatedly spends
// its time.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

// Follows metrics.jsonl of a run, which is truncated to the steps of the checkpoint when the run resumes.
class StepTimeline {
 public:
  using Clock = std::chrono::steady_clock;

  struct Step {
    int step = 0;
    Clock::time_point end;  // when its line was seen
    double seconds = 0;     // step_time_s
    double stall_s = 0;     // of the checkpoint that the line reports as completed
    double write_s = 0;
  };

  explicit StepTimeline(std::filesystem::path metrics) : metrics_(std::move(metrics)) {}

  // Call often: notices a new line, or that lines were removed.
  void look();
  // The step of the last line; 0 if there is none.
  int last_step() const { return counting_.empty() ? 0 : counting_.back().step; }
  // The steps whose lines are present, in order.
  const std::vector<Step>& counting() const { return counting_; }
  // The steps whose lines were removed.
  const std::vector<Step>& undone() const { return undone_; }
  // All steps in chronological order.
  std::vector<Step> all() const;

 private:
  std::filesystem::path metrics_;
  std::uintmax_t seen_bytes_ = 0;
  std::vector<Step> counting_;
  std::vector<Step> undone_;
};

// A kill and when the ranks had ended.
struct Kill {
  StepTimeline::Clock::time_point at;
  StepTimeline::Clock::time_point ranks_ended;  // the agent begins to restart them
};

// Seconds of a run from `begin` to `end`; they add up to the wall time.
struct TimeUse {
  double wall_s = 0;
  double useful_s = 0;         // steps that count
  double redone_s = 0;         // finished steps that were repeated
  double cut_off_s = 0;        // work in progress when a kill came
  double ending_s = 0;         // from the kills until all ranks had ended
  double starting_s = 0;       // from then until the first step began
  double between_steps_s = 0;  // the rest: checkpoints begun, logs

  // ETTR, effective training time ratio.
  double useful_share() const { return useful_s / wall_s; }
  std::string table() const;
};

TimeUse time_use(const StepTimeline& timeline, const std::vector<Kill>& kills,
                 StepTimeline::Clock::time_point begin, StepTimeline::Clock::time_point end);

// The optimal number of steps between checkpoints when a failure occurs every `failure_s`: Young (1974),
// sqrt(2 x stall x time between failures), but no more often than checkpoints can be written, in steps of
// `step_s`.
int steps_between_checkpoints(double step_s, double stall_s, double write_s, double failure_s);

}  // namespace tessera
