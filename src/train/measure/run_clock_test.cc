#include "train/measure/run_clock.h"
#include "support/train/from_word.h"

#include <gtest/gtest.h>

#include <cmath>

namespace tessera {
namespace {

StepMetrics step_of(double seconds, int64_t num_tokens = 1000) {
  StepMetrics metrics;
  metrics.step_time_s = seconds;
  metrics.num_tokens = num_tokens;
  return metrics;
}

// A run with its clock.
class Clock {
 public:
  Clock(const RunSpec& spec, int64_t max_steps, int64_t steps_per_epoch = 1000)
      : actions_(spec, steps_per_epoch, max_steps),
        clock(actions_, max_steps, spec.guards.replay_check_steps) {}

  std::optional<double> left() const { return clock.seconds_left(step_, estimates); }
  std::optional<double> run(int num_steps, double seconds) {
    for (int i = 0; i < num_steps; ++i) {
      ++step_;
      clock.add_step(step_of(seconds));
    }
    return left();
  }

 private:
  ActionSchedule actions_;
  int64_t step_ = 0;

 public:
  RunClock clock;
  RunEstimates estimates;
};

RunSettings without_checkpoints() {
  RunSettings spec;
  spec.saving.strategy = SaveStrategy::kNo;
  return spec;
}

TEST(RunClock, KnowsNothingBeforeThreeStepsBesidesTheFirst) {
  Clock run(without_checkpoints(), 100);
  EXPECT_EQ(run.left(), std::nullopt);
  EXPECT_EQ(run.run(1, 9), std::nullopt);
  EXPECT_EQ(run.run(1, 1), std::nullopt);
  EXPECT_EQ(run.run(1, 5), std::nullopt);
  EXPECT_EQ(run.run(1, 1), 96) << "the median of 1, 5 and 1";
}

TEST(RunClock, IsSteadyUnderSlowSteps) {
  Clock run(without_checkpoints(), 1000);
  run.run(30, 2);
  for (int64_t step = 31; step < 200; ++step) {
    const double seconds = step % 7 == 0 ? 40 : 2;
    EXPECT_DOUBLE_EQ(run.run(1, seconds).value(), 2.0 * static_cast<double>(1000 - step)) << step;
  }
}

TEST(RunClock, FollowsALastingChange) {
  Clock slow(without_checkpoints(), 1000);
  slow.run(100, 2);
  EXPECT_DOUBLE_EQ(slow.run(21, 4).value(), 4.0 * (1000 - 121)) << "of the last 21 steps";
  Clock fast(without_checkpoints(), 100'000);
  fast.run(10'000, 0.01);
  EXPECT_DOUBLE_EQ(fast.run(400, 0.02).value(), 0.01 * (100'000 - 10'400)) << "8 of the last 30 s";
  EXPECT_DOUBLE_EQ(fast.run(1000, 0.02).value(), 0.02 * (100'000 - 11'400));
}

TEST(RunClock, CountsEvaluationsBySpeedUntilOneIsMeasured) {
  RunSettings spec = without_checkpoints();
  spec.evaluation.strategy = IntervalStrategy::kSteps;
  spec.evaluation.steps = 10;
  Clock run(spec, 100);
  run.estimates.evaluation_tokens = 6000;  // of steps with 1000 tokens in 2 s: forward in a third of 12 s
  EXPECT_DOUBLE_EQ(run.run(9, 2).value(), 91 * 2 + 10 * 4);
  EXPECT_DOUBLE_EQ(run.run(1, 2).value(), 90 * 2 + 10 * 4) << "the evaluation after this step is due";
  run.clock.add(RunPart::kEvaluation, 7);
  EXPECT_DOUBLE_EQ(run.run(1, 2).value(), 89 * 2 + 9 * 7);
  run.run(89, 2);
  EXPECT_DOUBLE_EQ(run.left().value(), 7) << "the last one";
}

TEST(RunClock, CountsCheckpointsByTheirStallAndTheWaitForTheLast) {
  RunSettings spec;
  spec.saving.steps = 40;  // after 40, 80, 100
  Clock run(spec, 100);
  run.estimates = {.checkpoint_s = 30, .saves_in_background = true, .model_s = 5};
  EXPECT_DOUBLE_EQ(run.run(10, 2).value(), 90 * 2 + 30 + 5);
  run.run(30, 2);
  StepMetrics step = step_of(2);
  step.checkpoint = {.step = 40, .bytes = 1, .write_s = 30, .stall_s = 3};
  run.clock.add_step(step);
  EXPECT_DOUBLE_EQ(run.run(1, 2).value(), 59 * 2 + 2 * 3 + 30 + 5);
  run.run(59, 2);
  EXPECT_DOUBLE_EQ(run.left().value(), 3 + 30 + 5);

  Clock waiting(spec, 100);
  waiting.estimates = {.checkpoint_s = 30, .saves_in_background = false, .model_s = 5};
  EXPECT_DOUBLE_EQ(waiting.run(10, 2).value(), 90 * 2 + 3 * 30 + 5) << "training waits for each of them";
}

TEST(RunClock, CountsSnapshotsAndRepeatedPasses) {
  RunSettings spec = without_checkpoints();
  spec.saving.peer_snapshot_steps = 20;
  spec.guards.replay_check_steps = 50;
  Clock run(spec, 100);
  run.run(20, 2);
  StepMetrics step = step_of(2 + 0.5);
  step.peer_snapshot_s = 0.25;
  step.replay_check_s = 0.5;
  run.clock.add_step(step);
  EXPECT_DOUBLE_EQ(run.run(1, 2).value(), 79 * 2 + 4 * 0.25 + 2 * 0.5) << "snapshots after 40, 60, 80, 100";
}

// The estimate of a run that is always as fast equals what is left of it, evaluations and checkpoints
// included.
TEST(RunClock, AgreesWithARunThatKeepsItsSpeed) {
  RunSettings spec;
  spec.evaluation.strategy = IntervalStrategy::kEpoch;
  spec.saving.steps = 30;
  spec.evaluation.delay = 2;
  constexpr int64_t kSteps = 200, kStepsPerEpoch = 27;
  constexpr double kStep = 1, kEvaluation = 11, kStall = 2, kModel = 3;
  const ActionSchedule actions(spec, kStepsPerEpoch, kSteps);
  double left = kModel;
  for (int64_t step = 1; step <= kSteps; ++step) {
    const StepActions due = actions.after(step);
    left += kStep + (due.evaluate ? kEvaluation : 0) + (due.save ? kStall : 0);
  }
  RunClock clock(actions, kSteps, 0);
  const RunEstimates estimates = {
      .evaluation_tokens = 33'000, .checkpoint_s = kStall, .saves_in_background = false, .model_s = kModel};
  for (int64_t step = 1; step <= kSteps; ++step) {
    left -= kStep;
    clock.add_step(step_of(kStep));
    const std::optional<double> estimate = clock.seconds_left(step, estimates);
    ASSERT_EQ(estimate.has_value(), step > 3);
    if (estimate) {
      EXPECT_NEAR(*estimate, left, 1e-9) << "after step " << step;
    }
    const StepActions due = actions.after(step);
    if (due.evaluate) clock.add(RunPart::kEvaluation, kEvaluation);
    if (due.evaluate) left -= kEvaluation;
    if (due.save) left -= kStall;
  }
  EXPECT_NEAR(left, kModel, 1e-9);
}

TEST(ActionSchedule, CountsWhatTakesTimeInTheStepsToCome) {
  RunSettings spec;
  spec.saving.peer_snapshot_steps = 3;
  for (const char* strategy : {"no", "steps", "epoch"}) {
    for (const double delay : {0.0, 1.0, 1.5, 2.0, 7.0, 50.0}) {
      for (const int64_t interval : {1, 3, 4, 11}) {
        spec.evaluation.strategy = from_word(strategy);
        spec.evaluation.delay = delay;
        spec.evaluation.steps = static_cast<double>(interval);
        const ActionSchedule actions(spec, /*steps_per_epoch=*/4, /*max_steps=*/10);
        ActionCounts counts;
        for (int64_t step = 10; step >= 0; --step) {
          const ActionCounts found = actions.counts_after(step);
          SCOPED_TRACE(testing::Message()
                       << strategy << " " << delay << " " << interval << " after " << step);
          EXPECT_EQ(found.evaluations, counts.evaluations);
          EXPECT_EQ(found.snapshots, counts.snapshots);
          EXPECT_EQ(found.saves, actions.num_saves(step));
          if (step == 0) break;
          counts.evaluations += actions.after(step).evaluate ? 1 : 0;
          counts.snapshots += actions.after(step).snapshot ? 1 : 0;
        }
      }
    }
  }
}

}  // namespace
}  // namespace tessera
