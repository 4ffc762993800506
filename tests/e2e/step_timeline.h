// When the steps of a run were finished, seen from outside, and where the time of a run that is killed again
// and again goes.
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

// Follows metrics.jsonl of a run, which is cut to the steps of the checkpoint when the run goes on from it.
class StepTimeline {
 public:
  using Clock = std::chrono::steady_clock;

  struct Step {
    int step = 0;
    Clock::time_point end;  // when its line was there
    double seconds = 0;     // step_time_s
    double stall_s = 0;     // of the checkpoint whose completion the line tells
    double write_s = 0;
  };

  explicit StepTimeline(std::filesystem::path metrics) : metrics_(std::move(metrics)) {}

  // To be called often: takes in a new line, or that lines are gone.
  void look();
  // Of the last line; 0: there is none.
  int last_step() const { return counting_.empty() ? 0 : counting_.back().step; }
  // The lines that are there, in order.
  const std::vector<Step>& counting() const { return counting_; }
  // Those that are not there any more.
  const std::vector<Step>& undone() const { return undone_; }
  // All in order of time.
  std::vector<Step> all() const;

 private:
  std::filesystem::path metrics_;
  std::uintmax_t seen_bytes_ = 0;
  std::vector<Step> counting_;
  std::vector<Step> undone_;
};

// What a kill did to the run.
struct Kill {
  StepTimeline::Clock::time_point at;
  StepTimeline::Clock::time_point ranks_ended;  // the agent begins to start them again
};

// Seconds of a run from `begin` to `end`; they add up to the wall time.
struct TimeUse {
  double wall_s = 0;
  double useful_s = 0;         // of the steps that count
  double redone_s = 0;         // of finished steps that were done again
  double cut_off_s = 0;        // of what was under way when a kill came
  double ending_s = 0;         // from the kills until all ranks had ended
  double starting_s = 0;       // and from there until the first step began
  double between_steps_s = 0;  // the rest: checkpoints begun, logs

  // ETTR, effective training time ratio.
  double useful_share() const { return useful_s / wall_s; }
  std::string table() const;
};

TimeUse time_use(const StepTimeline& timeline, const std::vector<Kill>& kills,
                 StepTimeline::Clock::time_point begin, StepTimeline::Clock::time_point end);

// Steps from one checkpoint to the next that cost least when a failure comes every `failure_s`: Young (1974),
// sqrt(2 x stall x time between failures), and no more often than they are written, in steps of `step_s`.
int steps_between_checkpoints(double step_s, double stall_s, double write_s, double failure_s);

}  // namespace tessera
