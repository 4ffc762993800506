// Effects of --loss_spike_policy on steps whose loss stands out.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "expect_error.h"
#include "support/train/from_word.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

// The threshold is so low that every loss above the mean of the two before it is a spike.
void ask_for_spikes(const std::string& policy, TinyRun* tiny) {
  tiny->spec.guards.loss_spike_policy = from_word(policy);
  tiny->spec.guards.loss_spike_window = 2;
  tiny->spec.guards.loss_spike_sigmas = 1e-9;
  tiny->spec.batch.max_steps = 8;
  tiny->spec.saving.strategy = SaveStrategy::kSteps;
  tiny->spec.saving.steps = 1;
}

TEST(LossSpikePolicy, SkipLeavesWeightsAndMeansAlone) {
  TinyRun tiny;
  ask_for_spikes("skip", &tiny);
  const RecordingObserver observer = tiny.train();
  int64_t num_skipped = 0;
  double loss_sum = 0;
  for (const StepMetrics& step : observer.steps) {
    num_skipped += step.skipped;
    if (!step.skipped) loss_sum += step.loss;
    if (step.step == 1) continue;
    const auto weights_after = [&](int64_t number) {
      return read_tensors(tiny.output() / fmt::format("checkpoint-{}", number));
    };
    EXPECT_EQ(weights_after(step.step) == weights_after(step.step - 1), step.skipped) << step.step;
  }
  EXPECT_GT(num_skipped, 0);
  EXPECT_LT(num_skipped, 6);
  EXPECT_NEAR(observer.summary.train_loss, loss_sum / static_cast<double>(8 - num_skipped), 1e-12);
  const auto lines = read_json_lines(tiny.output() / "metrics.jsonl");
  EXPECT_EQ(
      std::count_if(lines.begin(), lines.end(), [](const auto& line) { return line.contains("skipped"); }),
      num_skipped);
}

TEST(LossSpikePolicy, WarnGoesOn) {
  TinyRun tiny;
  ask_for_spikes("warn", &tiny);
  const RecordingObserver observer = tiny.train();
  for (const StepMetrics& step : observer.steps) EXPECT_FALSE(step.skipped);
}

TEST(LossSpikePolicy, StopEndsTheRun) {
  TinyRun tiny;
  ask_for_spikes("stop", &tiny);
  expect_error(ExitCode::kNumerics, {"stands out", "weights were left as they are after step"},
               [&] { tiny.train(); });
}

TEST(LossSpikePolicy, SkipBearsTenStepsInARowThatAreNotFinite) {
  TinyRun tiny;
  tiny.spec.guards.loss_spike_policy = LossSpikePolicy::kSkip;
  tiny.spec.schedule.learning_rate = 1e30;
  tiny.spec.clipping.max_norm = 0;
  tiny.spec.batch.max_steps = 20;
  expect_error(ExitCode::kNumerics, {"step 12: loss", "not finite"}, [&] { tiny.train(); });
  tiny.spec.batch.max_steps = 11;
  const RecordingObserver observer = tiny.train();
  EXPECT_FALSE(observer.steps[0].skipped);
  EXPECT_TRUE(observer.steps[10].skipped);
  EXPECT_TRUE(std::isfinite(observer.summary.train_loss));
}

}  // namespace
}  // namespace tessera
