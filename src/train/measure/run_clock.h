// Estimates the remaining time of a run.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "plan/step_actions.h"
#include "report/observer.h"

namespace tessera {

// The activities of a run besides steps. A checkpoint that is written while training continues counts only
// for the time in which training stood still.
enum class RunPart { kEvaluation, kCheckpoint, kSnapshot, kReplayCheck };
constexpr size_t kNumRunParts = 4;

// Estimates of times that cannot be measured before they occur, or that occur once.
struct RunEstimates {
  int64_t evaluation_tokens = 0;  // of one evaluation, over all ranks
  double checkpoint_s = 0;        // from its start to its completion
  bool saves_in_background = true;
  double model_s = 0;  // writing the finished model
};

// The estimate is steady: a step counts with the median of the last ones, what is done between steps with the
// median of the last times that it was done. The first step of a process, which touches memory and fills
// caches, is dropped once there are others.
class RunClock {
 public:
  // `actions` must outlive this. If replay_check_steps is above 0, every replay_check_steps steps a pass is
  // computed twice.
  RunClock(const ActionSchedule& actions, int64_t max_steps, int64_t replay_check_steps);

  void add_step(const StepMetrics& metrics);
  void add(RunPart part, double seconds);

  // Seconds to the end of the run: the steps after `step`, what is due after `step` and after each of them,
  // and the writing of the model. nullopt until enough steps have been seen.
  std::optional<double> seconds_left(int64_t step, const RunEstimates& estimates) const;

 private:
  struct Step {
    double time_s;   // without computing a pass again
    double token_s;  // time of a token
  };

  double median_of(double Step::*field) const;
  // Median of the last times; `otherwise` if it was never done.
  double median_of(RunPart part, double otherwise) const;

  const ActionSchedule& actions_;
  int64_t max_steps_;
  int64_t replay_check_steps_;
  // The last ones. Room is reserved: a step allocates nothing.
  std::vector<Step> steps_;
  std::array<std::vector<double>, kNumRunParts> parts_;
  mutable std::vector<double> scratch_;
  double steps_s_ = 0;  // sum of steps_
  int64_t num_seen_ = 0;
};

}  // namespace tessera
