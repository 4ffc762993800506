// TFLOPS and MFU of a run.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "devices/measure/training_peak.h"
#include "kernels/dispatch.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

// The rows of TinyRun have 9 tokens; a step has two micro-batches of two rows.
double flops_of_a_step(const StepMetrics& step) {
  const std::vector<int32_t> rows = {0, 9, 18, 27, 36};
  return model_flops(tiny_config(), rows, step.num_target_tokens).forward_backward();
}

TEST(Speed, TflopsAreModelFlopsPerSecondOfTheStep) {
  TinyRun tiny;
  tiny.spec.batch.max_steps = 3;
  const RecordingObserver run = tiny.train();
  double flops = 0;
  double seconds = 0;
  for (const StepMetrics& step : run.steps) {
    const double expected = flops_of_a_step(step) * 1e-12 / step.step_time_s;
    EXPECT_NEAR(step.tflops, expected, 1e-9 * expected) << "step " << step.step;
    flops += flops_of_a_step(step);
    seconds += step.step_time_s;
  }
  EXPECT_NEAR(run.summary.tflops, flops * 1e-12 / seconds, 1e-9 * run.summary.tflops);
}

TEST(Speed, TheTimesOfAStepAddUp) {
  TinyRun tiny;
  tiny.spec.placement.gradient_checkpointing = true;
  for (const StepMetrics& step : tiny.train().steps) {
    const StepTimes& times = step.times;
    for (const double part :
         {times.rows_s, times.products_s, times.attention_s, times.elementwise_s, times.optimizer_s}) {
      EXPECT_GT(part, 0) << "step " << step.step;
    }
    EXPECT_GE(times.other_s, 0);
    EXPECT_NEAR(times.listed_s() + times.other_s, step.step_time_s, 1e-9) << "step " << step.step;
  }
}

TEST(Speed, RecomputingActivationsDoesNotCount) {
  TinyRun tiny;
  tiny.spec.placement.gradient_checkpointing = true;
  const StepMetrics step = tiny.train().steps.back();
  EXPECT_NEAR(step.tflops * 1e12 * step.step_time_s, flops_of_a_step(step), 1e-6 * flops_of_a_step(step));
}

// The peak is measured again between steps, for the first time between the first two.
void expect_mfu_of_the_best_peak(const RecordingObserver& run) {
  BestPeak before = {run.plan.peak->tflops, 1};
  EXPECT_DOUBLE_EQ(run.steps.front().peak.value().tflops, before.tflops);
  for (const StepMetrics& step : run.steps) {
    ASSERT_TRUE(step.mfu && step.peak);
    EXPECT_DOUBLE_EQ(*step.mfu, step.tflops / step.peak->tflops);
    EXPECT_GT(*step.mfu, 0);
    EXPECT_LT(*step.mfu, 1);
    EXPECT_GE(step.peak->tflops, before.tflops) << "step " << step.step;
    EXPECT_GE(step.peak->num_measurements, step.step == 1 ? 1 : 2) << "step " << step.step;
    before = *step.peak;
  }
  EXPECT_DOUBLE_EQ(run.summary.mfu.value(), run.summary.tflops / run.summary.peak.value().tflops);
  EXPECT_EQ(run.summary.peak->num_measurements, before.num_measurements);
}

TEST(Speed, MfuIsTheShareOfTheBestPeakSeen) {
  TinyRun tiny;
  tiny.spec.reporting.measure_peak = true;
  const RecordingObserver run = tiny.train();
  if (!run.plan.peak) GTEST_SKIP() << "no instruction set to measure a peak of";
  EXPECT_EQ(run.plan.peak->arithmetic, "float32");
  expect_mfu_of_the_best_peak(run);
  const auto last_line = read_json_lines(tiny.output() / "metrics.jsonl").back();
  EXPECT_EQ(last_line.at("mfu"), *run.steps.back().mfu);
  EXPECT_EQ(last_line.at("peak_tflops"), run.steps.back().peak->tflops);
}

TEST(Speed, ThePeakOfSeveralRanksIsThatOfAllTogether) {
  TinyRun tiny;
  tiny.spec.reporting.measure_peak = true;
  tiny.spec.sharding.stage = 2;
  const RecordingObserver run = train_ranks(tiny.spec, {.num_nodes = 1, .local_world_size = 3}).front();
  if (!run.plan.peak) GTEST_SKIP() << "no instruction set to measure a peak of";
  expect_mfu_of_the_best_peak(run);
}

TEST(Speed, TheBestMeasurementOfThePeakCounts) {
  ThreadPool pool(2);
  TrainingPeak peak(pool, DType::kBF16);
  EXPECT_EQ(peak.is_due(), peak.best().has_value()) << "right after the first step";
  if (!peak.best()) return;
  for (int64_t count = 1; count < 6; ++count) {
    EXPECT_EQ(peak.num_measurements(), count);
    const double before = peak.best_tflops();
    peak.measure_again();
    EXPECT_GE(peak.best_tflops(), before);
    EXPECT_EQ(peak.best()->tflops, peak.best_tflops());
    EXPECT_FALSE(peak.is_due());
  }
}

TEST(Speed, TheSummaryTellsWhereTheTimeWent) {
  TinyRun tiny;
  tiny.spec.batch.max_steps = 6;
  tiny.spec.data.eval_dataset = tiny.spec.data.dataset;
  tiny.spec.evaluation.strategy = IntervalStrategy::kSteps;
  tiny.spec.evaluation.steps = 2;
  tiny.spec.saving.strategy = SaveStrategy::kSteps;
  tiny.spec.saving.steps = 3;
  const RecordingObserver run = tiny.train();
  const RunTimes& times = run.summary.times;
  EXPECT_EQ(times.num_steps, 6);
  EXPECT_EQ(times.num_evaluations, 3);
  EXPECT_EQ(times.num_checkpoints, 2);
  double steps_s = 0, products_s = 0;
  for (const StepMetrics& step : run.steps) {
    steps_s += step.step_time_s;
    products_s += step.times.products_s;
    EXPECT_EQ(step.eta_s.has_value(), step.step > 3) << "step " << step.step;
  }
  EXPECT_DOUBLE_EQ(times.steps_s, steps_s);
  EXPECT_DOUBLE_EQ(times.steps.products_s, products_s);
  EXPECT_NEAR(times.steps.listed_s() + times.steps.other_s, steps_s, 1e-9);
  for (const double part : {times.startup_s, times.evaluation_s, times.checkpoint_s, times.model_s})
    EXPECT_GT(part, 0);
  EXPECT_LE(times.startup_s + steps_s + times.evaluation_s + times.checkpoint_s + times.model_s,
            times.total_s);

  double best = run.evaluations.front().loss;
  for (const EvalResult& evaluation : run.evaluations) best = std::min(best, evaluation.loss);
  EXPECT_EQ(run.summary.best_evaluation.value().loss, best);
}

TEST(Speed, WithoutAPeakThereIsNoMfu) {
  TinyRun tiny;
  const RecordingObserver run = tiny.train();
  EXPECT_FALSE(run.plan.peak.has_value());
  for (const StepMetrics& step : run.steps) EXPECT_FALSE(step.mfu.has_value());
  EXPECT_FALSE(run.summary.mfu.has_value());
  EXPECT_FALSE(read_json_lines(tiny.output() / "metrics.jsonl").back().contains("mfu"));
}

TEST(Speed, ThePeakIsOfAnInstructionSetThatIsAllowed) {
  ThreadPool pool(2);
  const std::optional<ComputePeak> bf16 = TrainingPeak(pool, DType::kBF16).best();
  const std::optional<ComputePeak> f32 = TrainingPeak(pool, DType::kF32).best();
  EXPECT_EQ(f32.has_value(), isa_refusal(Isa::kAvx2).empty());
  EXPECT_EQ(bf16.has_value(), f32.has_value());
  if (!f32) return;
  // The faster of the two depends on the processor.
  EXPECT_THAT(f32->instruction_set, testing::AnyOf("avx512", "avx2"));
  EXPECT_EQ(bf16->instruction_set == "amx_bf16", isa_refusal(Isa::kAmxBf16).empty());
  for (const ComputePeak& peak : {*bf16, *f32}) {
    EXPECT_EQ(isa_refusal(*parse_isa(peak.instruction_set)), "") << peak.instruction_set;
    EXPECT_GT(peak.tflops, 0.001) << peak.instruction_set;
  }
}

}  // namespace
}  // namespace tessera
