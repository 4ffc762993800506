#include "train/measure/run_clock.h"

#include "base/median.h"

namespace tessera {
namespace {

// The window has at least kMinWindowSteps, and as many steps as fit into kWindowSeconds: steps of a few
// milliseconds vary more than steps of minutes.
constexpr size_t kMinWindowSteps = 21, kMaxWindowSteps = 1001;
constexpr double kWindowSeconds = 30;
// Besides the first one: their median tolerates one more slow step.
constexpr int64_t kMinSteps = 3;
constexpr size_t kMaxTimesOfPart = 5;
// A forward pass takes about a third of the operations of forward and backward.
constexpr double kForwardShare = 1.0 / 3;

}  // namespace

RunClock::RunClock(const ActionSchedule& actions, int64_t max_steps, int64_t replay_check_steps)
    : actions_(actions), max_steps_(max_steps), replay_check_steps_(replay_check_steps) {
  steps_.reserve(kMaxWindowSteps + 1);
  scratch_.reserve(kMaxWindowSteps);
  for (std::vector<double>& times : parts_) times.reserve(kMaxTimesOfPart);
}

void RunClock::add_step(const StepMetrics& metrics) {
  const double replay_s = metrics.replay_check_s.value_or(0);
  if (replay_s > 0) add(RunPart::kReplayCheck, replay_s);
  if (metrics.checkpoint) add(RunPart::kCheckpoint, metrics.checkpoint->stall_s);
  if (metrics.peer_snapshot_s) add(RunPart::kSnapshot, *metrics.peer_snapshot_s);
  const auto drop_first = [this] {
    steps_s_ -= steps_.front().time_s;
    steps_.erase(steps_.begin());
  };
  if (++num_seen_ == 2) drop_first();
  const double time_s = metrics.step_time_s - replay_s;
  steps_.push_back({time_s, time_s / static_cast<double>(metrics.num_tokens)});
  steps_s_ += time_s;
  while (steps_.size() > kMaxWindowSteps ||
         (steps_.size() > kMinWindowSteps && steps_s_ - steps_.front().time_s > kWindowSeconds)) {
    drop_first();
  }
}

void RunClock::add(RunPart part, double seconds) {
  std::vector<double>& times = parts_.at(static_cast<size_t>(part));
  if (times.size() == kMaxTimesOfPart) times.erase(times.begin());
  times.push_back(seconds);
}

std::optional<double> RunClock::seconds_left(int64_t step, const RunEstimates& estimates) const {
  const int64_t steps_left = max_steps_ - step;
  if (steps_.empty() || (steps_left > 0 && num_seen_ <= kMinSteps)) return std::nullopt;
  const auto times = [](int64_t count, double seconds) { return static_cast<double>(count) * seconds; };
  const ActionCounts due = actions_.counts_after(step - 1);
  const double forward_s = times(estimates.evaluation_tokens, kForwardShare * median_of(&Step::token_s));
  const double background_s = estimates.saves_in_background ? estimates.checkpoint_s : 0;
  double left_s = times(steps_left, median_of(&Step::time_s)) + estimates.model_s +
                  times(due.evaluations, median_of(RunPart::kEvaluation, forward_s)) +
                  times(due.saves, median_of(RunPart::kCheckpoint, estimates.checkpoint_s - background_s)) +
                  times(due.snapshots, median_of(RunPart::kSnapshot, 0));
  if (due.saves > 0) left_s += background_s;  // the end of the run waits for its last checkpoint
  if (replay_check_steps_ > 0) {
    const int64_t num_checks = max_steps_ / replay_check_steps_ - step / replay_check_steps_;
    left_s += times(num_checks, median_of(RunPart::kReplayCheck, 0));
  }
  return left_s;
}

double RunClock::median_of(double Step::*field) const {
  scratch_.clear();
  for (const Step& step : steps_) scratch_.push_back(step.*field);
  return median_in_place(scratch_);
}

double RunClock::median_of(RunPart part, double otherwise) const {
  const std::vector<double>& times = parts_.at(static_cast<size_t>(part));
  if (times.empty()) return otherwise;
  scratch_.assign(times.begin(), times.end());
  return median_in_place(scratch_);
}

}  // namespace tessera
