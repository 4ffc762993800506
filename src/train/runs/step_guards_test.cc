// Guards over the steps of a run: loss spikes and slow ranks.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "train/guards/loss_spike.h"
#include "train/guards/slow_ranks.h"

namespace tessera {
namespace {

// Mean 2, deviation about 0.1.
double ordinary(int step) { return 2 + 0.1 * std::sin(step * 1.7); }

LossSpikeDetector after_steps(int count) {
  LossSpikeDetector detector({.window = 16, .sigmas = 6});
  for (int step = 0; step < count; ++step) EXPECT_FALSE(detector.observe(ordinary(step), ordinary(step)));
  return detector;
}

TEST(LossSpike, IsWhatLiesFarAboveTheMeanOfTheWindow) {
  LossSpikeDetector detector = after_steps(40);
  EXPECT_FALSE(detector.observe(2.3, 2));
  const auto spike = detector.observe(4, 2);
  ASSERT_TRUE(spike.has_value());
  EXPECT_EQ(spike->what, "loss");
  EXPECT_EQ(spike->value, 4);
  EXPECT_NEAR(spike->mean, 2, 0.1);
  EXPECT_LT(spike->deviation, 0.2);
}

TEST(LossSpike, MayBeInTheGradientNormAlone) {
  const auto spike = after_steps(40).observe(2, 50);
  ASSERT_TRUE(spike.has_value());
  EXPECT_EQ(spike->what, "gradient norm");
}

TEST(LossSpike, AFallIsNone) { EXPECT_FALSE(after_steps(40).observe(0.1, 0.1)); }

TEST(LossSpike, NeedsHalfAWindow) {
  EXPECT_FALSE(after_steps(7).observe(40, 40));
  EXPECT_TRUE(after_steps(8).observe(40, 40));
}

TEST(LossSpike, ANewLevelIsNoneForEver) {
  LossSpikeDetector detector = after_steps(40);
  int spikes = 0;
  for (int step = 0; step < 16; ++step) spikes += detector.observe(4 + ordinary(step), 2).has_value();
  EXPECT_GE(spikes, 1);
  EXPECT_LE(spikes, 3);
}

TEST(LossSpike, ARunThatIsContinuedRemembers) {
  LossSpikeDetector whole = after_steps(40);
  LossSpikeDetector continued({.window = 16, .sigmas = 6});
  continued.restore(whole.history());
  for (const double loss : {2.4, 2.6, 2.8, 3.2, 9.0}) {
    EXPECT_EQ(whole.observe(loss, 2).has_value(), continued.observe(loss, 2).has_value()) << loss;
  }
  LossSpikeDetector shorter({.window = 4, .sigmas = 6});
  shorter.restore(whole.history());
  EXPECT_EQ(shorter.history().losses.size(), 4u);
  EXPECT_EQ(shorter.history().losses.back(), whole.history().losses.back());
}

// Three ranks of equal work; the last takes `factor` times as long.
std::vector<SlowRankChange> run(SlowRankDetector& detector, int num_steps, double factor,
                                double compute_s = 0.2) {
  std::vector<SlowRankChange> changes;
  for (int step = 0; step < num_steps; ++step) {
    const std::vector<double> work = {1, 1, 1}, seconds = {compute_s, 1.1 * compute_s, factor * compute_s};
    for (const SlowRankChange& change : detector.observe(work, seconds)) changes.push_back(change);
  }
  return changes;
}

TEST(SlowRanks, OneThatFallsBehindIsNamedWithinTwentySteps) {
  SlowRankDetector detector(3, {});
  EXPECT_THAT(run(detector, 30, 1.2), testing::IsEmpty());
  const auto changes = run(detector, 20, 2.2);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].rank, 2);
  EXPECT_TRUE(changes[0].is_slow);
  EXPECT_NEAR(detector.times_median()[2], 2, 0.01);
}

TEST(SlowRanks, OneThatRecoversIsNamedOnce) {
  SlowRankDetector detector(3, {});
  run(detector, 20, 3);
  const auto changes = run(detector, 40, 1);
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].rank, 2);
  EXPECT_FALSE(changes[0].is_slow);
}

TEST(SlowRanks, OfTwoTheSlowOneIsNamed) {
  SlowRankDetector detector(2, {});
  std::vector<SlowRankChange> changes;
  for (int step = 0; step < 20 && changes.empty(); ++step) {
    changes = detector.observe(std::vector<double>{1, 1}, std::vector<double>{0.3, 0.2});
  }
  ASSERT_EQ(changes.size(), 1u);
  EXPECT_EQ(changes[0].rank, 0);
}

TEST(SlowRanks, ASingleSlowStepIsNone) {
  SlowRankDetector detector(3, {});
  run(detector, 20, 1);
  EXPECT_THAT(run(detector, 1, 5), testing::IsEmpty());
  EXPECT_THAT(run(detector, 19, 1), testing::IsEmpty());
}

TEST(SlowRanks, MoreWorkIsNotSlowness) {
  SlowRankDetector detector(3, {});
  for (int step = 0; step < 30; ++step) {
    EXPECT_THAT(detector.observe(std::vector<double>{1, 4, 0}, std::vector<double>{0.2, 0.8, 0.001}),
                testing::IsEmpty());
  }
  EXPECT_EQ(detector.times_median()[2], 1) << "had no rows";
}

TEST(SlowRanks, StepsTooShortToTellSayNothing) {
  SlowRankDetector detector(3, {});
  EXPECT_THAT(run(detector, 30, 3, 0.001), testing::IsEmpty());
}

}  // namespace
}  // namespace tessera
