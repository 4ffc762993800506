#include <gmock/gmock.h>

#include <limits>
#include <thread>

#include "base/clock.h"
#include "io/file.h"
#include "monitor/metrics/exposition.h"
#include "monitor/metrics/metric_table.h"
#include "monitor/metrics/run_health.h"
#include "monitor/metrics/run_metrics.h"
#include "support/web/metrics_text.h"
#include "test_paths.h"

namespace tessera {
namespace {

using testing::HasSubstr;

constexpr MetricInfo kGauge = {"tessera_a_bytes", MetricType::kGauge, "kind", "A size."};
constexpr MetricInfo kCounter = {"tessera_b_seconds_total", MetricType::kCounter, "", "A time."};
constexpr MetricInfo kHistogram = {"tessera_c_seconds", MetricType::kHistogram, "phase", "Times."};

std::string example(bool is_open_metrics) {
  Exposition out(is_open_metrics);
  out.family(kGauge);
  out.sample(0.1, {{"kind", "a \"b\" \\ c\nd"}});
  out.sample(std::numeric_limits<double>::quiet_NaN(), {{"kind", "lost"}});
  out.family(kCounter);
  out.sample(1e15);
  TimeHistogram times;
  times.observe(0.001);
  times.observe(0.0011);
  times.observe(5000);
  out.family(kHistogram);
  out.histogram(times, {{"phase", "all"}});
  return std::move(out).finish();
}

TEST(Exposition, BothFormatsAreWellFormed) {
  for (const bool is_open_metrics : {false, true}) {
    const MetricsText parsed = parse_metrics(example(is_open_metrics), is_open_metrics);
    EXPECT_EQ(parsed.at(R"(tessera_a_bytes{kind="a \"b\" \\ c\nd"})"), 0.1);
    EXPECT_EQ(parsed.at("tessera_b_seconds_total"), 1e15);
    EXPECT_EQ(parsed.at(R"(tessera_c_seconds_bucket{phase="all",le="0.001"})"), 1);
    EXPECT_EQ(parsed.at(R"(tessera_c_seconds_bucket{phase="all",le="0.0025"})"), 2);
    EXPECT_EQ(parsed.at(R"(tessera_c_seconds_bucket{phase="all",le="1000.0"})"), 2);
    EXPECT_EQ(parsed.at(R"(tessera_c_seconds_bucket{phase="all",le="+Inf"})"), 3);
    EXPECT_DOUBLE_EQ(parsed.at(R"(tessera_c_seconds_sum{phase="all"})"), 5000.0021);
  }
  EXPECT_THAT(example(true),
              HasSubstr("# TYPE tessera_b_seconds counter\n# UNIT tessera_b_seconds seconds\n"));
  EXPECT_THAT(example(false), HasSubstr("# TYPE tessera_b_seconds_total counter\n"));
}

TEST(MetricTable, IsTheOneOfTheDocumentation) {
  EXPECT_THAT(read_text_file(source_folder() / "docs/operations.md"), HasSubstr(metrics_markdown()));
}

StepMetrics step(int64_t number, double seconds) {
  StepMetrics metrics;
  metrics.step = number;
  metrics.loss = 1.0 / static_cast<double>(number);
  metrics.num_tokens = 100;
  metrics.step_time_s = seconds;
  metrics.times.products_s = seconds / 2;
  metrics.mfu = 0.5;
  return metrics;
}

MetricsText written(const RunMetrics& metrics) {
  Exposition out(false);
  metrics.write(&out);
  return parse_metrics(std::move(out).finish(), false);
}

TEST(RunMetrics, EvaluationSetsHaveALossEach) {
  RunMetrics metrics(1);
  EvalResult eval;
  for (const auto& [set, loss] : {std::pair("news", 2.5), std::pair("code", 1.5), std::pair("news", 2.25)}) {
    eval.loss = loss;
    metrics.on_evaluation(set, eval);
  }
  const MetricsText text = written(metrics);
  EXPECT_EQ(text.at(R"(tessera_eval_loss{set="news"})"), 2.25);
  EXPECT_EQ(text.at(R"(tessera_eval_loss{set="code"})"), 1.5);
}

TEST(RunMetrics, ShowTheLastStepAndAddUpTheOthers) {
  RunMetrics metrics(3);
  EXPECT_FALSE(written(metrics).types.contains("tessera_train_loss"));
  const std::vector<RankStep> ranks = {{.compute_s = 1}, {.compute_s = 1.5, .wait_s = 2.5}, {.compute_s = 4}};
  for (int64_t number = 1; number <= 3; ++number) {
    StepMetrics of_step = step(number, 0.02);
    of_step.ranks = ranks;
    of_step.skipped = number == 2;
    of_step.loss_spike = number >= 2;
    of_step.disk = {.read_bytes = 10, .written_bytes = 4, .weights_wait_s = 0.5};
    if (number == 2) of_step.grad_norm = std::numeric_limits<double>::infinity();
    metrics.on_step(of_step);
  }
  EvalResult eval;
  eval.loss = 2.5;
  metrics.on_evaluation("", eval);
  metrics.on_checkpoint({.step = 3, .bytes = 1000, .write_s = 2, .stall_s = 0.25});
  metrics.on_checkpoint_failed("checkpoint-4", "disk full");
  metrics.on_warning("disk full");
  const MetricsText text = written(metrics);
  EXPECT_DOUBLE_EQ(text.at("tessera_train_loss"), 1.0 / 3);
  EXPECT_EQ(text.at("tessera_train_step"), 3);
  EXPECT_EQ(text.at("tessera_tokens_total"), 300);
  EXPECT_EQ(text.at("tessera_eval_loss"), 2.5);
  EXPECT_EQ(text.at("tessera_mfu_ratio"), 0.5);
  EXPECT_EQ(text.at("tessera_skipped_steps_total"), 1);
  EXPECT_EQ(text.at("tessera_loss_spikes_total"), 2);
  EXPECT_EQ(text.at("tessera_nonfinite_steps_total"), 1);
  EXPECT_EQ(text.at("tessera_log_warnings_total"), 1);
  EXPECT_EQ(text.at(R"(tessera_step_seconds_count{phase="all"})"), 3);
  EXPECT_DOUBLE_EQ(text.at(R"(tessera_step_seconds_sum{phase="products"})"), 0.03);
  EXPECT_EQ(text.at(R"(tessera_step_seconds_bucket{phase="all",le="0.01"})"), 0);
  EXPECT_EQ(text.at(R"(tessera_rank_lag_seconds{rank="0"})"), -0.5);
  EXPECT_EQ(text.at(R"(tessera_rank_lag_seconds{rank="2"})"), 2.5);
  EXPECT_EQ(text.at(R"(tessera_rank_compute_seconds{rank="2"})"), 4);
  EXPECT_EQ(text.at(R"(tessera_rank_wait_seconds{rank="1"})"), 2.5);
  EXPECT_EQ(text.at(R"(tessera_checkpoint_seconds{phase="stall"})"), 0.25);
  EXPECT_EQ(text.at(R"(tessera_offload_bytes_total{direction="read"})"), 30);
  EXPECT_EQ(text.at(R"(tessera_offload_wait_seconds_total{kind="weights"})"), 1.5);
  EXPECT_EQ(text.at("tessera_checkpoints_total"), 1);
  EXPECT_EQ(text.at("tessera_checkpoint_failures_total"), 1);
  EXPECT_LT(text.at("tessera_checkpoint_age_seconds"), 10);
}

TEST(RunMetrics, CanBeReadWhileTheyAreTold) {
  RunMetrics metrics(1);
  std::atomic<bool> is_over = false;
  std::thread reader([&] {
    while (!is_over) {
      const MetricsText text = written(metrics);
      EXPECT_EQ(text.at("tessera_tokens_total"), 100 * text.at("tessera_train_step"));
    }
  });
  constexpr int64_t kSteps = 20'000;
  const Stopwatch time;
  for (int64_t number = 1; number <= kSteps; ++number) metrics.on_step(step(number, 0.01));
  // A step of 100 ms may lose 0.1 %; this leaves room for a slow machine and sanitizers.
  EXPECT_LT(time.seconds() / kSteps, 100e-6);
  is_over = true;
  reader.join();
}

TEST(RunMetrics, TheClockFollowsFromThePeakOfKnownInstructions) {
  EXPECT_EQ(clock_of_peak("amx_bf16", 2 * 1024 * 2.5e9, 2), 2.5e9);
  EXPECT_EQ(clock_of_peak("avx512", 64 * 3e9, 1), 3e9);
  EXPECT_EQ(clock_of_peak("avx512_bf16", 1e12, 1), std::nullopt);
}

class HealthOfARun : public testing::Test {
 protected:
  void work(const char* what) { position_.mark(Activity::kWork, {.what = what, .number = 1}); }

  RankPosition position_;
  double now_s_ = 1000;
};

TEST_F(HealthOfARun, IsLostWithoutAStepWithinTheLimit) {
  work("forward");
  RunHealth health(position_, 30, [this] { return now_s_; });
  EXPECT_FALSE(health.report().has_step);
  health.on_step(step(7, 1));
  now_s_ += 30;
  RunHealth::Report report = health.report();
  EXPECT_TRUE(report.is_healthy());
  EXPECT_TRUE(report.has_step);
  EXPECT_EQ(report.step, 7);
  EXPECT_EQ(report.step_age_s, 30);
  EXPECT_THAT(report.json(), HasSubstr(R"({"status":"ok","step":7,"seconds_since_step":30.0)"));
  now_s_ += 0.1;
  report = health.report();
  EXPECT_FALSE(report.is_healthy());
  EXPECT_THAT(report.json(), HasSubstr(R"("status":"stalled")"));
  EXPECT_THAT(report.json(), HasSubstr(R"("phase":"forward")"));
  health.on_step(step(8, 1));
  EXPECT_TRUE(health.report().is_healthy());
}

TEST_F(HealthOfARun, TheLimitFollowsFromTheStepsSoFar) {
  work("backward");
  RunHealth health(position_, 0, [this] { return now_s_; });
  EXPECT_EQ(health.report().limit_s, kRunPhaseLimit_s);
  for (int i = 1; i <= 100; ++i) health.on_step(step(i, i <= 90 ? 1 : 100));
  EXPECT_EQ(health.report().limit_s, 600);
  for (int i = 101; i <= 120; ++i) health.on_step(step(i, 100));
  EXPECT_EQ(health.report().limit_s, 1000);
}

TEST_F(HealthOfARun, OtherWorkMayTakeLongerAndTheNextStepHasItsWholeTime) {
  RunHealth health(position_, 30, [this] { return now_s_; });
  health.on_step(step(1, 1));
  work("evaluation");
  now_s_ += 1000;
  EXPECT_TRUE(health.report().is_healthy());
  EXPECT_EQ(health.report().phase, "evaluation");
  work("choosing rows");
  EXPECT_TRUE(health.report().is_healthy());
  now_s_ += 31;
  EXPECT_FALSE(health.report().is_healthy());
  health.on_evaluation("", {});
  EXPECT_TRUE(health.report().is_healthy());
}

}  // namespace
}  // namespace tessera
