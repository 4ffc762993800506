// Training with gradients that travel between nodes in int8 or int4 blocks (--zero_quantized_gradients).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>

#include "checkpoint/checkpoint_reader.h"
#include "support/draws.h"
#include "support/train/from_word.h"
#include "support/train/saving_run.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

struct QuantizedCase {
  RanksCase ranks;
  const char* code;
  const char* dtype = "bfloat16";
  const char* accumulators = "auto";
  bool is_tied = false;

  std::string name() const { return ranks.name() + code + dtype + accumulators + (is_tied ? "tied" : ""); }
  friend void PrintTo(const QuantizedCase& of, std::ostream* out) { *out << of.name(); }
};

ModelConfig tied_config(bool is_tied) {
  ModelConfig config = tiny_config();
  config.tie_word_embeddings = is_tied;
  return config;
}

SavingRun saving_run(const QuantizedCase& of) {
  SavingRun run(of.ranks.ranks, tied_config(of.is_tied));
  // Several passes.
  run.spec.placement.merge_micro_batches = AutoChoice::kNever;
  run.spec.batch.global_rows = 12;
  run.spec.batch.accumulation_steps = 12 / run.ranks.world_size();
  run.spec.precision.dtype = from_word(of.dtype);
  if (std::string_view(of.accumulators) != "auto")
    run.spec.sharding.grad_accum_dtype = from_word(of.accumulators);
  run.spec.sharding.stage = of.ranks.stage;
  run.spec.sharding.gather_schedule = from_word(of.ranks.schedule);
  run.spec.sharding.prefetch_bucket_size = 0;
  run.spec.sharding.persistence_threshold = 0;
  run.spec.sharding.quantized_gradients = from_word(of.code);
  return run;
}

std::vector<QuantizedCase> quantized_cases() {
  return {{{{2, 1}, 0, "auto"}, "int8", "float32"},
          {{{2, 1}, 2, "auto"}, "int4"},
          {{{2, 2}, 1, "auto"}, "int8", "bfloat16", "bfloat16"},
          {{{2, 2}, 3, "per_layer"}, "int4", "bfloat16", "auto", true},
          {{{3, 1}, 3, "per_layer"}, "int8", "bfloat16", "bfloat16"},
          {{{3, 1}, 3, "per_step"}, "int4", "float32", "auto", true}};
}

class QuantizedGradients : public testing::TestWithParam<QuantizedCase> {};
INSTANTIATE_TEST_SUITE_P(Cases, QuantizedGradients, testing::ValuesIn(drawn_cases(quantized_cases())),
                         [](const auto& test) { return test.param.name(); });

// The first norm has the errors of one step: a value is off by up to half a step of its block, which is a
// seventh of the largest in int4. They are independent of each other, so that squares of them add up: where
// the largest value is 5 standard deviations, the norm grows by 2 % in int4, by less than 1e-4 in int8.
TEST_P(QuantizedGradients, TrainLikeExactOnes) {
  SavingRun run = saving_run(GetParam());
  run.spec.schedule.learning_rate = 1e-3;
  run.spec.saving.strategy = SaveStrategy::kNo;
  const RecordingObserver quantized = run.run();
  run.spec.sharding.quantized_gradients = std::nullopt;
  run.spec.output_dir = run.folder() / "exact";
  const RecordingObserver exact = run.run();
  ASSERT_EQ(quantized.steps.size(), exact.steps.size());
  EXPECT_EQ(quantized.steps[0].loss, exact.steps[0].loss);
  const bool is_int4 = GetParam().code == std::string("int4");
  EXPECT_NE(quantized.steps[0].grad_norm, exact.steps[0].grad_norm);
  EXPECT_NEAR(quantized.steps[0].grad_norm, exact.steps[0].grad_norm,
              (is_int4 ? 0.05 : 0.005) * exact.steps[0].grad_norm);
  // Rounding that differs anywhere moves losses in bfloat16 by up to 2e-3.
  const bool is_bf16 = GetParam().dtype == std::string("bfloat16");
  for (size_t i = 1; i < exact.steps.size(); ++i) {
    EXPECT_NEAR(quantized.steps[i].loss, exact.steps[i].loss,
                (is_int4 || is_bf16 ? 5e-3 : 5e-4) * exact.steps[i].loss);
  }
}

TEST_P(QuantizedGradients, ResumeBitForBit) {
  SavingRun run = saving_run(GetParam());
  run.spec.saving.steps = 2;
  run.run();
  expect_resumes_alike(run, {2, 4});
}

// Whether any error in the checkpoint, which is of a tied_config(), is not zero.
bool has_errors(const fs::path& checkpoint, bool is_tied) {
  const CheckpointReader reader = CheckpointReader::open(checkpoint);
  const ParameterLayout layout = parameter_layout(tied_config(is_tied));
  std::atomic<bool> found = false;
  ThreadPool pool(1);
  reader.load(
      layout, {&kGradientFeedback, 1}, {{0, layout.num_elements()}},
      [&](StateKind kind, int64_t /*begin*/, std::span<const float> values) {
        if (kind == StateKind::kMaster) return;
        if (std::ranges::any_of(values, [](float error) { return error != 0; })) found = true;
      },
      pool);
  EXPECT_TRUE(reader.has_state(kGradientFeedback.name) || !found);
  return found;
}

TEST_P(QuantizedGradients, ResumeOnOtherRanks) {
  SavingRun run = saving_run(GetParam());
  const RecordingObserver whole = run.run();
  EXPECT_TRUE(has_errors(run.output() / "checkpoint-3", GetParam().is_tied));
  const bool has_three_nodes = run.ranks.num_nodes == 3;
  for (const Ranks& ranks : {has_three_nodes ? Ranks{2, 2} : Ranks{3, 1}, Ranks{1, 2}}) {
    SCOPED_TRACE(fmt::format("{} nodes of {} ranks", ranks.num_nodes, ranks.local_world_size));
    SavingRun resumed = run;
    resumed.spec.output_dir = run.output();
    resumed.interrupt_at(3, fmt::format("on{}x{}", ranks.num_nodes, ranks.local_world_size));
    resumed.ranks = ranks;
    resumed.spec.resume = parse_resume("true");
    testing::internal::CaptureStderr();
    const RecordingObserver seen = resumed.run();
    const std::string log = testing::internal::GetCapturedStderr();
    EXPECT_EQ(log.find("gradient_feedback of ") != std::string::npos, ranks.num_nodes == 1) << log;
    EXPECT_THAT(log, Not(HasSubstr("converted")));
    EXPECT_EQ(has_errors(resumed.output() / "checkpoint-6", GetParam().is_tied), ranks.num_nodes > 1);
    ASSERT_EQ(seen.steps.size(), 3u);
    for (size_t i = 0; i < seen.steps.size(); ++i) {
      EXPECT_NEAR(seen.steps[i].loss, whole.steps[i + 3].loss, 2e-2 * whole.steps[i + 3].loss);
    }
  }
}

TEST(QuantizedGradientsTest, ResumeARunThatHadNoErrors) {
  SavingRun run = saving_run(quantized_cases()[1]);
  run.spec.sharding.quantized_gradients = std::nullopt;
  const RecordingObserver whole = run.run();
  EXPECT_FALSE(has_errors(run.output() / "checkpoint-3", false));
  SavingRun resumed = run;
  resumed.interrupt_at(3, "quantized");
  resumed.spec.sharding.quantized_gradients = GradientCode::kInt8;
  resumed.spec.resume = parse_resume("true");
  const RecordingObserver seen = resumed.run();
  EXPECT_EQ(seen.differences, R"(zero_quantized_gradients "none" -> "int8")");
  for (size_t i = 0; i < seen.steps.size(); ++i) {
    EXPECT_NEAR(seen.steps[i].loss, whole.steps[i + 3].loss, 2e-3 * whole.steps[i + 3].loss);
  }
}

// A pass that is computed twice, for the norm or to compare it, is computed with the same errors.
TEST(QuantizedGradientsTest, HaveTheSameBitsWhereAPassIsComputedTwice) {
  for (const QuantizedCase& of : {quantized_cases()[1], quantized_cases()[3]}) {
    SavingRun run = saving_run(of);
    run.spec.placement.merge_micro_batches = AutoChoice::kAlways;
    run.spec.clipping.max_norm = 0.05;
    run.run();
    const fs::path expected = run.output();
    run.spec.output_dir = run.folder() / "in backward";
    run.spec.placement.optimizer_in_backward = true;
    run.run();
    expect_same_run(run.output(), expected);
    run.spec.resume = parse_resume("auto");
    run.spec.output_dir = run.folder() / "resumed";
    run.run_until_signal(3);
    run.run();
    expect_same_run(run.output(), expected);
  }
  SavingRun run = saving_run(quantized_cases()[4]);
  run.run();
  const fs::path expected = run.output();
  run.spec.output_dir = run.folder() / "replayed";
  run.spec.guards.replay_check_steps = 2;
  run.run();
  EXPECT_EQ(tensor_files(run.output()), tensor_files(expected));
}

// Errors of steps that are skipped are not sent.
TEST(QuantizedGradientsTest, ResumeBitForBitAfterSkippedSteps) {
  SavingRun run = saving_run(quantized_cases()[1]);
  run.spec.guards.loss_spike_policy = LossSpikePolicy::kSkip;
  run.spec.guards.loss_spike_window = 2;
  run.spec.guards.loss_spike_sigmas = 1e-9;
  run.spec.batch.max_steps = 8;
  run.spec.schedule.learning_rate = 1e-1;
  const RecordingObserver seen = run.run();
  int64_t num_skipped = 0;
  for (const StepMetrics& step : seen.steps) num_skipped += step.skipped;
  EXPECT_GT(num_skipped, 0);
  EXPECT_LT(num_skipped, 6);
  const fs::path whole = run.output();
  for (const int64_t step : {3, 5}) {
    SavingRun resumed = run;
    resumed.spec.output_dir = whole;
    resumed.interrupt_at(step, fmt::format("resumed{}", step));
    resumed.spec.resume = parse_resume("auto");
    resumed.run();
    EXPECT_EQ(tensor_files(resumed.output() / "checkpoint-8"), tensor_files(whole / "checkpoint-8"));
  }
}

// In the middle of step 3: what is saved are the weights after step 2, without errors of a step that was
// given up. The run that resumes from it is deterministic.
TEST(QuantizedGradientsTest, AreSavedWithoutTheStepThatASignalEnds) {
  SavingRun run = saving_run(quantized_cases()[4]);
  run.spec.saving.steps = 6;
  run.spec.grace_period_s = 0.5;  // less than a checkpoint is expected to take
  std::atomic<bool> is_in_step = false;
  std::atomic<int64_t> num_asked = 0;
  const RecordingObserver stopped =
      run.run([&](int rank) { return rank == 0 && is_in_step && ++num_asked > 3 ? SIGTERM : 0; },
              [&](const StepMetrics& metrics) { is_in_step = metrics.step >= 2; });
  ASSERT_EQ(stopped.checkpoints, std::vector<fs::path>{run.output() / "checkpoint-2"});
  EXPECT_FALSE(has_errors(run.output() / "checkpoint-2", false));
  run.spec.resume = parse_resume("true");
  run.interrupt_at(2, "again");
  EXPECT_EQ(run.run().steps.size(), 4u);
}

}  // namespace
}  // namespace tessera
