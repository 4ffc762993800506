#include "report/run_progress.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace tessera {
namespace {

StepMetrics step_with(double tokens_per_second, double loss = 1) {
  StepMetrics step;
  step.loss = loss;
  step.tokens_per_second = tokens_per_second;
  step.tflops = tokens_per_second / 100;
  return step;
}

TEST(ProgressMeter, ForgetsTheFirstStepAndThoseLongAgo) {
  ProgressMeter meter;
  meter.add(step_with(100));
  EXPECT_EQ(meter.progress().tflops, 1) << "there is no other";
  for (const double speed : {900, 500, 900}) meter.add(step_with(speed));
  EXPECT_EQ(meter.progress().tokens_per_second, 900) << "the median of 900, 500 and 900";
  EXPECT_EQ(meter.progress().tflops, 9);
  for (int i = 0; i < 40; ++i) meter.add(step_with(300));
  meter.add(step_with(10));
  EXPECT_EQ(meter.progress().tokens_per_second, 300);
}

// Uniform in [0, 1).
class Uniform {
 public:
  explicit Uniform(uint64_t seed) : engine_(seed) {}
  double operator()() { return static_cast<double>(engine_() >> 11) * 0x1p-53; }

 private:
  std::mt19937_64 engine_;
};

Trend trend_of(int num_steps, double slope, double noise, uint64_t seed) {
  ProgressMeter meter;
  Uniform uniform(seed);
  for (int i = 0; i < num_steps; ++i) meter.add(step_with(1, 3 + slope * i + noise * (uniform() - 0.5)));
  return meter.progress().trend;
}

TEST(ProgressMeter, SeesAChangeThroughTheNoiseAndTakesNoiseForNone) {
  EXPECT_EQ(trend_of(7, -1, 0, 1), Trend::kUnknown);
  EXPECT_EQ(trend_of(8, -0.1, 0.05, 1), Trend::kFalling);
  EXPECT_EQ(trend_of(500, 0.01, 0.1, 1), Trend::kRising);
  EXPECT_EQ(trend_of(500, 0, 0, 1), Trend::kLevel);
  int num_level = 0;
  for (uint64_t seed = 0; seed < 200; ++seed)
    num_level += trend_of(64, 0, 0.5, seed) == Trend::kLevel ? 1 : 0;
  EXPECT_GE(num_level, 180) << "about 95 % are within two standard errors";
}

TEST(ProgressMeter, TellsTheChangeBetweenTheHalvesOfTheLastSteps) {
  ProgressMeter meter;
  for (int i = 0; i < 132; ++i) meter.add(step_with(1, i < 100 ? 9 : 3));
  for (int i = 0; i < 32; ++i) meter.add(step_with(1, 2));
  StepMetrics skipped = step_with(1, 100);
  skipped.skipped = true;
  meter.add(skipped);
  meter.add(step_with(1, std::nan("")));
  EXPECT_DOUBLE_EQ(meter.progress().loss_change.value(), -1) << "neither of the last two counts";
  EXPECT_EQ(meter.progress().trend, Trend::kFalling);
}

TEST(ProgressMeter, ComparesTheSpeedWithTheLastPeakSeen) {
  ProgressMeter meter;
  meter.add(step_with(100));
  EXPECT_EQ(meter.progress().mfu, std::nullopt);
  StepMetrics measured = step_with(200);
  measured.peak = BestPeak{8, 1};
  meter.add(measured);
  EXPECT_EQ(meter.progress().mfu, 0.25);
  meter.add(step_with(400));
  EXPECT_EQ(meter.progress().mfu, 0.5) << "the upper of 200 and 400";
}

}  // namespace
}  // namespace tessera
