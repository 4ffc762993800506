// Resuming from checkpoints: the same bits on the same ranks, the same losses on others.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <csignal>

#include "io/file.h"
#include "support/draws.h"
#include "support/train/from_word.h"
#include "support/train/saving_run.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

struct SameRanksCase {
  RanksCase ranks;
  std::string dtype;
  std::string optim = "adamw_torch";

  std::string name() const { return ranks.name() + dtype + (optim == "adamw_torch" ? "" : "_" + optim); }
  friend void PrintTo(const SameRanksCase& of, std::ostream* out) { *out << of.name(); }
};

// A tiny model whose tensors all begin with a block of 8-bit state.
ModelConfig config_of_blocks() {
  ModelConfig config = tiny_config();
  config.intermediate_size = 16;
  return config;
}

class SameRanks : public testing::TestWithParam<SameRanksCase> {};

TEST_P(SameRanks, GoOnBitForBitFromEveryStep) {
  const bool is_coded = GetParam().optim.ends_with("_8bit");
  SavingRun run(GetParam().ranks.ranks, is_coded ? config_of_blocks() : tiny_config());
  run.spec.precision.dtype = from_word(GetParam().dtype);
  run.spec.optimizer.form = from_word(GetParam().optim);
  run.spec.sharding.stage = GetParam().ranks.stage;
  run.spec.sharding.gather_schedule = from_word(GetParam().ranks.schedule);
  run.run();
  const fs::path whole = run.output();
  for (int64_t step = 1; step < 6; ++step) {
    SCOPED_TRACE(fmt::format("interrupted behind step {}", step));
    SavingRun resumed = run;
    resumed.spec.output_dir = whole;
    resumed.interrupt_at(step, fmt::format("resumed{}", step));
    resumed.spec.resume = parse_resume(step % 2 == 0 ? "true" : "auto");
    const RecordingObserver seen = resumed.run();
    EXPECT_EQ(std::ssize(seen.steps), 6 - step) << "steps taken";
    EXPECT_EQ(seen.resumed_step, step);
    EXPECT_EQ(seen.differences, "");
    expect_same_run(resumed.output(), whole);
  }
}

std::vector<SameRanksCase> same_ranks_cases() {
  std::vector<SameRanksCase> cases;
  const auto add = [&cases](const Ranks& ranks, int64_t stage, const char* schedule, const char* dtype) {
    cases.push_back({{ranks, stage, schedule}, dtype});
  };
  add({1, 1}, 0, "auto", "float32");
  add({1, 1}, 0, "auto", "bfloat16");
  add({1, 2}, 2, "auto", "float32");
  add({1, 2}, 0, "auto", "bfloat16");
  add({1, 4}, 2, "auto", "bfloat16");
  add({2, 1}, 0, "auto", "float32");
  add({2, 2}, 1, "auto", "float32");
  add({2, 2}, 3, "per_step", "bfloat16");
  add({2, 2}, 3, "per_layer", "bfloat16");
  add({4, 1}, 3, "per_layer", "float32");
  cases.push_back({{{1, 3}, 2, "auto"}, "bfloat16", "adamw_bf16"});
  cases.push_back({{{2, 1}, 3, "per_layer"}, "bfloat16", "lion_32bit"});
  cases.push_back({{{1, 3}, 2, "auto"}, "bfloat16", "adamw_8bit"});
  cases.push_back({{{2, 2}, 3, "per_layer"}, "float32", "lion_8bit"});
  cases.push_back({{{1, 3}, 2, "auto"}, "bfloat16", "muon"});
  cases.push_back({{{2, 2}, 3, "per_layer"}, "float32", "adafactor"});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Resume, SameRanks, testing::ValuesIn(drawn_cases(same_ranks_cases())),
                         [](const auto& test) { return test.param.name(); });

struct OtherRanksCase {
  RanksCase then;
  RanksCase now;

  std::string name() const { return then.name() + "To" + now.name(); }
  friend void PrintTo(const OtherRanksCase& of, std::ostream* out) { *out << of.name(); }
};

class OtherRanks : public testing::TestWithParam<OtherRanksCase> {};

TEST_P(OtherRanks, HaveTheSameLosses) {
  SavingRun run(GetParam().then.ranks);
  run.spec.sharding.stage = GetParam().then.stage;
  run.spec.sharding.gather_schedule = from_word(GetParam().then.schedule);
  const RecordingObserver whole = run.run();
  SavingRun resumed = run;
  resumed.interrupt_at(2, "resumed");
  resumed.ranks = GetParam().now.ranks;
  resumed.spec.sharding.stage = GetParam().now.stage;
  resumed.spec.sharding.gather_schedule = from_word(GetParam().now.schedule);
  resumed.spec.resume = parse_resume("true");
  const RecordingObserver seen = resumed.run();
  ASSERT_EQ(seen.steps.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const StepMetrics &found = seen.steps[i], &expected = whole.steps[i + 2];
    EXPECT_EQ(found.step, expected.step);
    EXPECT_EQ(found.epoch, expected.epoch);
    EXPECT_EQ(found.num_tokens, expected.num_tokens);
    EXPECT_EQ(found.learning_rate, expected.learning_rate);
    EXPECT_NEAR(found.loss, expected.loss, 1e-5 * expected.loss) << "step " << found.step;
    EXPECT_NEAR(found.grad_norm, expected.grad_norm, 1e-4 * expected.grad_norm);
  }
  EXPECT_EQ(seen.summary.num_tokens, whole.summary.num_tokens);
}

std::vector<OtherRanksCase> other_ranks_cases() {
  std::vector<OtherRanksCase> cases;
  const auto add = [&cases](const RanksCase& then, const RanksCase& now) { cases.push_back({then, now}); };
  add({{1, 4}, 2, "auto"}, {{1, 1}, 0, "auto"});
  add({{1, 4}, 2, "auto"}, {{1, 2}, 2, "auto"});
  add({{1, 4}, 2, "auto"}, {{1, 3}, 2, "auto"});
  add({{2, 2}, 3, "per_layer"}, {{3, 1}, 3, "per_layer"});
  add({{2, 1}, 3, "per_layer"}, {{2, 1}, 1, "auto"});
  add({{2, 1}, 3, "per_layer"}, {{2, 1}, 3, "per_step"});
  add({{2, 2}, 0, "auto"}, {{2, 1}, 3, "per_layer"});
  add({{1, 1}, 0, "auto"}, {{2, 2}, 3, "per_layer"});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Resume, OtherRanks, testing::ValuesIn(drawn_cases(other_ranks_cases())),
                         [](const auto& test) { return test.param.name(); });

// A run that stops after step 3 and continues with another optimizer, which says what it converts.
RecordingObserver resume_with(const SavingRun& run, const char* optim, const Ranks& ranks,
                              const char* conversion) {
  SavingRun resumed = run;
  resumed.interrupt_at(3, optim);
  resumed.ranks = ranks;
  resumed.spec.optimizer.form = from_word(optim);
  resumed.spec.resume = parse_resume("true");
  testing::internal::CaptureStderr();
  RecordingObserver seen = resumed.run();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr(fmt::format("converted: {}", conversion)));
  return seen;
}

TEST(Resume, AnotherFormOfTheOptimizerTakesTheStateAndSaysWhatIsLost) {
  const std::pair<const char*, const char*> forms[] = {
      {"adamw_bf16", "exp_avg from F32 to BF16 (rounded to 8 significant bits), exp_avg_sq"},
      {"adamw_8bit", "exp_avg from F32 to I8 (rounded to 4 significant bits), exp_avg_sq"}};
  SavingRun run({1, 2}, config_of_blocks());
  const RecordingObserver whole = run.run();
  for (const auto& [optim, conversion] : forms) {
    const RecordingObserver seen = resume_with(run, optim, run.ranks, conversion);
    EXPECT_THAT(seen.differences, testing::HasSubstr(fmt::format(R"(optim "adamw_torch" -> "{}")", optim)));
    ASSERT_EQ(seen.steps.size(), 3u);
    for (size_t i = 0; i < 3; ++i) {
      EXPECT_NEAR(seen.steps[i].loss, whole.steps[i + 3].loss, 0.02 * whole.steps[i + 3].loss) << optim;
    }
  }
}

TEST(Resume, MuonAndAdafactorTakeAdamWsStateOnOtherRanks) {
  const std::pair<const char*, const char*> optimizers[] = {
      {"muon", "momentum_buffer from exp_avg, without exp_avg_sq of the layers' matrices"},
      {"adafactor", "exp_avg_sq_row from means of exp_avg_sq, exp_avg_sq_col from means of exp_avg_sq"}};
  SavingRun run({1, 2});
  const RecordingObserver whole = run.run();
  for (const auto& [optim, conversion] : optimizers) {
    SCOPED_TRACE(optim);
    const RecordingObserver seen = resume_with(run, optim, {1, 3}, conversion);
    ASSERT_EQ(seen.steps.size(), 3u);
    EXPECT_NEAR(seen.steps[0].loss, whole.steps[3].loss, 1e-5 * whole.steps[3].loss) << "other weights";
    for (size_t i = 1; i < 3; ++i)
      EXPECT_NEAR(seen.steps[i].loss, whole.steps[i + 3].loss, 0.1 * whole.steps[i + 3].loss) << i;
  }
}

TEST(Resume, RowsOfAStepStayThroughSeveralChangesOfTheRanks) {
  SavingRun run({1, 4});
  const RecordingObserver whole = run.run();
  SavingRun resumed = run;
  resumed.interrupt_at(1, "resumed");
  resumed.spec.resume = parse_resume("true");
  resumed.spec.saving.steps = 2;
  std::vector<StepMetrics> steps;
  for (const int num_ranks : {3, 3, 2, 4}) {
    resumed.ranks = {1, num_ranks};
    const RecordingObserver seen = resumed.run_until_signal(1);
    steps.insert(steps.end(), seen.steps.begin(), seen.steps.end());
  }
  ASSERT_GE(steps.size(), 4u);
  for (const StepMetrics& step : steps) {
    const StepMetrics& expected = whole.steps[static_cast<size_t>(step.step - 1)];
    EXPECT_EQ(step.num_tokens, expected.num_tokens);
    EXPECT_NEAR(step.loss, expected.loss, 1e-5 * expected.loss) << "step " << step.step;
  }
}

TEST(Resume, MicroBatchesMaySplitOtherwise) {
  SavingRun run;
  const RecordingObserver whole = run.run();
  SavingRun resumed = run;
  resumed.interrupt_at(3, "resumed");
  resumed.spec.batch.rows_per_device = 2;
  resumed.spec.batch.accumulation_steps = 2;
  resumed.spec.resume = parse_resume("true");
  const RecordingObserver seen = resumed.run();
  ASSERT_EQ(seen.steps.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(seen.steps[i].epoch, whole.steps[i + 3].epoch);
    EXPECT_NEAR(seen.steps[i].loss, whole.steps[i + 3].loss, 1e-5 * whole.steps[i + 3].loss);
  }
}

TEST(Resume, AfterASignalIsAsIfThereHadBeenNone) {
  for (const int world_size : {1, 3}) {
    SavingRun run({1, world_size});
    run.spec.batch.accumulation_steps = 1;
    run.spec.saving.steps = 6;
    run.run();
    SavingRun stopped = run;
    stopped.spec.output_dir = run.folder() / "stopped";
    const RecordingObserver first = stopped.run_until_signal(1);
    ASSERT_LT(std::ssize(first.steps), 6);
    stopped.spec.resume = parse_resume("auto");
    stopped.run();
    expect_same_run(stopped.output(), run.output());
  }
}

// A signal in the middle of step 3, which has four passes.
RecordingObserver stop_in_step_3(const SavingRun& run) {
  std::atomic<bool> is_in_step = false;
  std::atomic<int64_t> num_asked = 0;
  const int last_rank = run.ranks.world_size() - 1;
  return run.run([&](int rank) { return rank == last_rank && is_in_step && ++num_asked > 3 ? SIGTERM : 0; },
                 [&](const StepMetrics& metrics) { is_in_step = metrics.step >= 2; });
}

TEST(Signal, TakesTheTimeForTheStepOrGivesItUp) {
  for (const int world_size : {1, 2}) {
    SavingRun run({1, world_size});
    run.spec.batch.accumulation_steps = 2;
    run.spec.placement.merge_micro_batches = AutoChoice::kNever;
    run.spec.saving.steps = 6;
    SavingRun patient = run;
    patient.spec.output_dir = run.folder() / "patient";
    EXPECT_EQ(stop_in_step_3(patient).checkpoints, std::vector<fs::path>{patient.output() / "checkpoint-3"});
    SavingRun hasty = run;
    hasty.spec.output_dir = run.folder() / "hasty";
    hasty.spec.saving.on_sigterm = false;
    EXPECT_TRUE(stop_in_step_3(hasty).checkpoints.empty());
  }
  SavingRun run;
  run.spec.placement.merge_micro_batches = AutoChoice::kNever;
  run.spec.saving.steps = 6;
  run.run();
  SavingRun late = run;
  late.spec.output_dir = run.folder() / "late";
  late.spec.grace_period_s = 0.5;  // less than a checkpoint is expected to take
  const RecordingObserver stopped = stop_in_step_3(late);
  EXPECT_EQ(stopped.steps.size(), 2u);
  EXPECT_EQ(stopped.summary.stop_signal, SIGTERM);
  EXPECT_EQ(stopped.checkpoints, std::vector<fs::path>{late.output() / "checkpoint-2"});
  late.spec.grace_period_s = 30;
  late.spec.resume = parse_resume("true");
  late.run();
  expect_same_run(late.output(), run.output());
}

TEST(Resume, ScheduleThatWatchesEvaluationsGoesOn) {
  SavingRun run;
  run.spec.schedule.form = ReduceLrOnPlateau{.factor = 0.5, .patience = 0, .threshold = 0.5};
  run.spec.evaluation.strategy = IntervalStrategy::kSteps;
  run.spec.evaluation.steps = 1;
  run.spec.data.eval_dataset = {run.folder() / "eval.safetensors"};
  const RecordingObserver whole = run.run();
  ASSERT_LT(whole.steps[5].learning_rate, whole.steps[2].learning_rate);
  SavingRun resumed = run;
  resumed.interrupt_at(3, "resumed");
  resumed.spec.resume = parse_resume("true");
  resumed.spec.schedule.learning_rate = 1;  // only at the start
  EXPECT_EQ(resumed.run().differences, "");
  expect_same_run(resumed.output(), run.output());
}

// The checkpoint then lacks the evaluation that should precede it.
TEST(Resume, EvaluationThatASignalCutShortIsMadeUpFor) {
  SavingRun run;
  run.spec.schedule.form = ReduceLrOnPlateau{.factor = 0.5, .patience = 0, .threshold = 0.5};
  run.spec.evaluation.strategy = IntervalStrategy::kSteps;
  run.spec.evaluation.steps = 1;
  run.spec.evaluation.rows_per_device = 1;
  run.spec.data.eval_dataset = {run.folder() / "eval.safetensors"};
  run.run();
  for (const int64_t step : {int64_t{3}, run.spec.batch.max_steps}) {
    SCOPED_TRACE(step);
    SavingRun stopped = run;
    stopped.spec.output_dir = run.folder() / fmt::format("stopped-{}", step);
    const RecordingObserver first = stopped.run_until_signal(step);
    ASSERT_EQ(std::ssize(first.steps), step);
    ASSERT_EQ(std::ssize(first.evaluations), step - 1);
    stopped.spec.resume = parse_resume("auto");
    EXPECT_EQ(std::ssize(stopped.run().evaluations), run.spec.batch.max_steps - step + 1);
    expect_same_run(stopped.output(), run.output());
  }
}

TEST(AsyncSave, WritesTheSameFiles) {
  for (const int world_size : {1, 2}) {
    SavingRun run({1, world_size});
    run.spec.precision.dtype = DType::kBF16;
    run.run();
    SavingRun waiting = run;
    waiting.spec.output_dir = run.folder() / "waiting";
    waiting.spec.saving.in_background = false;
    waiting.run();
    for (int64_t step = 1; step <= 6; ++step) {
      const std::string name = fmt::format("checkpoint-{}", step);
      EXPECT_EQ(tensor_files(run.output() / name), tensor_files(waiting.output() / name)) << name;
    }
  }
}

TEST(AsyncSave, MetricsTellWhatACheckpointCost) {
  SavingRun run({1, 2});
  run.spec.saving.steps = 2;
  run.spec.batch.max_steps = 8;
  const RecordingObserver seen = run.run();
  EXPECT_EQ(seen.checkpoints.size(), 4u);
  int64_t num_told = 0;
  for (const nlohmann::json& line : read_json_lines(run.output() / "metrics.jsonl")) {
    if (!line.contains("checkpoint_step")) continue;
    ++num_told;
    EXPECT_LT(line.at("checkpoint_step"), line.at("step"));
    EXPECT_GT(line.at("checkpoint_bytes"), 12 * 1000);
    EXPECT_GT(line.at("checkpoint_write_s"), 0);
    EXPECT_GT(line.at("checkpoint_stall_s"), 0);
  }
  EXPECT_GE(num_told, 2) << "the last two may complete after the last step";
}

}  // namespace
}  // namespace tessera
