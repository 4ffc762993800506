// The choice of the best model, the checkpoints kept for it, and early stopping.
#include "train/evaluation/best_model.h"
#include "support/train/from_word.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "checkpoint/checkpoint_files.h"
#include "expect_error.h"
#include "support/train/saving_run.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

LogEntry evaluation(double loss) {
  LogEntry entry;
  entry.values = {{"eval_loss", loss}, {"eval_runtime", 1.0}};
  return entry;
}

// Steps at which these losses are the best so far, and the step after which the run stops; 0 = never.
struct BestSteps {
  std::vector<int64_t> best_steps;
  int64_t stops_after = 0;
  bool operator==(const BestSteps&) const = default;
  friend void PrintTo(const BestSteps& of, std::ostream* out) {
    *out << fmt::format("best at {}, stops after {}", fmt::join(of.best_steps, " "), of.stops_after);
  }
};
BestSteps best_steps_of(const EvaluationSpec& spec, const std::vector<double>& losses) {
  const BestModelRule rule(spec);
  BestModel best;
  BestSteps found;
  for (size_t i = 0; i < losses.size() && found.stops_after == 0; ++i) {
    const auto step = static_cast<int64_t>(i) + 1;
    if (rule.observe(evaluation(losses[i]), step, &best)) found.best_steps.push_back(step);
    if (rule.stops(best)) found.stops_after = step;
  }
  return found;
}

TEST(BestModelRule, IsThatOfHuggingFacesTrainer) {
  EvaluationSpec spec;
  spec.metric = "eval_loss";
  spec.greater_is_better = false;
  EXPECT_EQ(best_steps_of(spec, {3, 2, 2, 4, 1}), (BestSteps{{1, 2, 5}, 0}));
  spec.early_stopping_patience = 2;
  EXPECT_EQ(best_steps_of(spec, {3, 2, 2, 4, 1}), (BestSteps{{1, 2}, 4}));
  EXPECT_EQ(best_steps_of(spec, {3, 2, 2, 1, 4, 5}), (BestSteps{{1, 2, 4}, 6}))
      << "a better one resets the count";
  // Better by the threshold or less is the best, but no reason to continue.
  spec.early_stopping_threshold = 0.5;
  EXPECT_EQ(best_steps_of(spec, {3, 2.5, 2.25, 1}), (BestSteps{{1, 2, 3}, 3}));
  EXPECT_EQ(best_steps_of(spec, {3, 2.4, 1.8, 1}), (BestSteps{{1, 2, 3, 4}, 0}));
  spec.early_stopping_threshold = 0;
  spec.greater_is_better = true;
  EXPECT_EQ(best_steps_of(spec, {3, 2, 4, 4, 4}), (BestSteps{{1, 3}, 5}));
  spec.greater_is_better = false;
  EXPECT_EQ(best_steps_of(spec, {kInfinity, std::nan(""), 2}), (BestSteps{{3}, 0}))
      << "infinity is better than none";
}

TEST(BestModelRule, WithoutAMetricNothingIsBest) {
  EXPECT_EQ(best_steps_of(EvaluationSpec(), {3, 2, 1}), (BestSteps{{}, 0}));
}

// A run of 6 steps that evaluates after each.
SavingRun evaluating_run(const Ranks& ranks = {}) {
  SavingRun run(ranks);
  run.spec.data.eval_dataset = {run.folder() / "eval.safetensors"};
  run.spec.evaluation.strategy = IntervalStrategy::kSteps;
  run.spec.evaluation.steps = 1;
  run.spec.evaluation.rows_per_device = 1;
  run.spec.evaluation.load_best_model = true;
  run.spec.evaluation.metric = "eval_loss";
  run.spec.evaluation.greater_is_better = false;
  return run;
}

std::vector<double> losses_of(const RecordingObserver& run) {
  std::vector<double> losses;
  for (const EvalResult& result : run.evaluations) losses.push_back(result.loss);
  return losses;
}

// The first step, counted from 1, with the least value, or the greatest.
int64_t best_step(const std::vector<double>& losses, bool greater) {
  const auto best = greater ? std::ranges::max_element(losses) : std::ranges::min_element(losses);
  return best - losses.begin() + 1;
}

std::vector<std::string> checkpoints_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename();
    if (parse_checkpoint_name(name)) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

// Weights as they are saved, and what trainer_state.json says about the best model.
void expect_best_model(const SavingRun& run, const std::vector<double>& losses, const std::string& label) {
  SCOPED_TRACE(label);
  const int64_t step = best_step(losses, *run.spec.evaluation.greater_is_better);
  const fs::path best = run.output() / checkpoint_name(step);
  const nlohmann::json state = read_json(run.output() / "trainer_state.json");
  EXPECT_EQ(state.at("best_global_step"), step);
  EXPECT_EQ(state.at("best_metric"), losses.at(static_cast<size_t>(step) - 1));
  EXPECT_EQ(state.at("best_model_checkpoint"), best.string());
  EXPECT_EQ(state.at("global_step"), std::ssize(losses));
  EXPECT_EQ(read_tensors(run.output()), read_tensors(best));
}

// The loss falls at every step with random rows: the greatest one is the first.
TEST(LoadBestModelAtEnd, FinishedModelIsThatOfTheBestCheckpoint) {
  struct Case {
    RanksCase of;
    bool greater, async;
  };
  const std::vector<Case> cases = {{{{1, 1}, 0, "per_step"}, true, true},
                                   {{{1, 1}, 0, "per_step"}, false, false},
                                   {{{1, 2}, 2, "per_step"}, true, false},
                                   {{{2, 1}, 3, "per_layer"}, true, true},
                                   {{{2, 2}, 1, "per_step"}, true, true}};
  for (const Case& one : cases) {
    SavingRun run = evaluating_run(one.of.ranks);
    run.spec.evaluation.greater_is_better = one.greater;
    run.spec.saving.in_background = one.async;
    run.spec.sharding.stage = one.of.stage;
    run.spec.sharding.gather_schedule = from_word(one.of.schedule);
    const std::vector<double> losses = losses_of(run.run());
    ASSERT_EQ(losses.size(), 6u);
    EXPECT_EQ(best_step(losses, one.greater), one.greater ? 1 : 6);
    expect_best_model(run, losses, one.of.name());
  }
}

TEST(LoadBestModelAtEnd, IsTheSameAfterAnInterruption) {
  SavingRun whole = evaluating_run({1, 2});
  whole.spec.evaluation.greater_is_better = true;
  const std::vector<double> losses = losses_of(whole.run());
  for (const int64_t step : {1, 5, 6}) {
    SavingRun resumed = whole;
    resumed.interrupt_at(step, fmt::format("resumed-{}", step));
    resumed.spec.resume = parse_resume("true");
    EXPECT_EQ(std::ssize(resumed.run().evaluations), 6 - step);
    expect_best_model(resumed, losses, fmt::format("from {}", step));
    EXPECT_EQ(read_tensors(resumed.output()), read_tensors(whole.output()));
  }
}

// The best checkpoint then stays where the run began.
TEST(LoadBestModelAtEnd, BestMayBeInTheFolderThatTheRunResumedFrom) {
  SavingRun run = evaluating_run();
  run.spec.evaluation.greater_is_better = true;
  const std::vector<double> losses = losses_of(run.run());
  const fs::path best = run.output() / checkpoint_name(best_step(losses, true));
  const auto expect_best_of_run = [&](const SavingRun& elsewhere) {
    EXPECT_EQ(read_tensors(elsewhere.output()), read_tensors(best));
    EXPECT_EQ(read_json(elsewhere.output() / "trainer_state.json").at("best_model_checkpoint"),
              best.string());
  };
  SavingRun elsewhere = run;
  elsewhere.spec.output_dir = run.folder() / "elsewhere";
  elsewhere.spec.resume = parse_resume(run.output() / "checkpoint-5");
  elsewhere.run();
  expect_best_of_run(elsewhere);

  SavingRun interrupted = run;
  interrupted.spec.output_dir = run.folder() / "interrupted";
  interrupted.spec.resume = parse_resume(run.output() / "checkpoint-4");
  interrupted.run_until_signal(1);
  interrupted.spec.resume = parse_resume("true");
  EXPECT_EQ(interrupted.run().steps.size(), 1u);
  expect_best_of_run(interrupted);
}

TEST(LoadBestModelAtEnd, BestMayBeTheRenamedOneThatTheRunResumedFrom) {
  SavingRun run = evaluating_run();
  run.spec.evaluation.greater_is_better = true;
  run.run();
  const auto best = read_tensors(run.output() / "checkpoint-1");
  fs::copy(run.output() / "checkpoint-1", run.folder() / "kept", fs::copy_options::recursive);
  SavingRun elsewhere = run;
  elsewhere.spec.output_dir = run.folder() / "elsewhere";
  elsewhere.spec.resume = parse_resume(run.folder() / "kept");
  elsewhere.run_until_signal(1);
  elsewhere.spec.resume = parse_resume("true");
  EXPECT_EQ(elsewhere.run().steps.size(), 4u);
  EXPECT_EQ(read_tensors(elsewhere.output()), best);
}

TEST(LoadBestModelAtEnd, EvaluationThatASignalCutShortCounts) {
  SavingRun whole = evaluating_run();
  whole.spec.evaluation.greater_is_better = true;
  const std::vector<double> losses = losses_of(whole.run());
  for (const std::string strategy : {"steps", "best"}) {
    for (const int64_t step : {1, 2}) {
      SavingRun stopped = whole;
      stopped.spec.output_dir = whole.folder() / fmt::format("stopped-{}-{}", strategy, step);
      stopped.spec.saving.strategy = from_word(strategy);
      ASSERT_EQ(std::ssize(stopped.run_until_signal(step).evaluations), step - 1);
      stopped.spec.resume = parse_resume("auto");
      stopped.run();
      expect_best_model(stopped, losses, fmt::format("{} after {}", strategy, step));
    }
  }
}

// The greatest of steps 1 to 6 is step 1, which has no checkpoint.
TEST(LoadBestModelAtEnd, IsTheBestOfTheEvaluationsThatHaveACheckpoint) {
  SavingRun run = evaluating_run({1, 2});
  run.spec.evaluation.greater_is_better = true;
  run.spec.saving.steps = 2;
  run.spec.saving.total_limit = 1;
  const auto expect_second = [](const SavingRun& of) {
    EXPECT_EQ(checkpoints_in(of.output()), std::vector<std::string>{"checkpoint-2"});
    EXPECT_EQ(read_tensors(of.output()), read_tensors(of.output() / "checkpoint-2"));
    const nlohmann::json state = read_json(of.output() / "trainer_state.json");
    EXPECT_EQ(state.at("best_global_step"), 1);
    EXPECT_EQ(state.at("best_model_checkpoint"), (of.output() / "checkpoint-2").string());
  };
  run.run();
  expect_second(run);
  SavingRun stopped = run;
  stopped.spec.output_dir = run.folder() / "stopped";
  stopped.run_until_signal(5);
  stopped.spec.resume = parse_resume("auto");
  stopped.run();
  expect_second(stopped);
}

TEST(LoadBestModelAtEnd, NeedsFractionsThatAreMultiplesInSteps) {
  SavingRun run = evaluating_run();
  run.spec.batch.max_steps = 11;
  run.spec.evaluation.steps = 0.1;
  run.spec.saving.steps = 0.2;
  expect_error(ExitCode::kBadConfig,
               {"of the 11 steps", "save_steps 0.2 is every 3", "eval_steps 0.1 every 2"},
               [&] { run.run(); });
}

TEST(LoadBestModelAtEnd, DamagedBestCheckpointIsNamed) {
  SavingRun run = evaluating_run();
  run.spec.evaluation.greater_is_better = true;
  const std::string best = "checkpoint-1";
  const auto damage = [&](const StepMetrics& step) {
    if (step.step == 6) fs::resize_file(run.output() / best / "config.json", 3);
  };
  expect_error(ExitCode::kBadData, {"load_best_model_at_end", best}, [&] { run.run({}, damage); });
}

TEST(LoadBestModelAtEnd, DeletedBestCheckpointLeavesTheModelOfTheLastStep) {
  SavingRun run = evaluating_run();
  run.spec.evaluation.greater_is_better = true;
  run.run({}, [&](const StepMetrics& step) {
    if (step.step == 6) fs::remove_all(run.output() / "checkpoint-1");
  });
  EXPECT_EQ(read_tensors(run.output()), read_tensors(run.output() / "checkpoint-6"));
}

TEST(SaveStrategyBest, SavesOnlyWhatIsBetter) {
  for (const bool greater : {false, true}) {
    SavingRun run = evaluating_run({1, 2});
    run.spec.saving.strategy = SaveStrategy::kBest;
    run.spec.evaluation.greater_is_better = greater;
    const RecordingObserver seen = run.run();
    const std::vector<double> losses = losses_of(seen);
    std::vector<std::string> expected;
    double best = greater ? -kInfinity : kInfinity;
    for (size_t i = 0; i < losses.size(); ++i) {
      if (greater ? losses[i] <= best : losses[i] >= best) continue;
      best = losses[i];
      expected.push_back(checkpoint_name(static_cast<int64_t>(i) + 1));
    }
    EXPECT_EQ(checkpoints_in(run.output()), expected);
    expect_best_model(run, losses, greater ? "greater" : "less");
  }
}

TEST(SaveTotalLimit, SparesTheBestAndTheNewest) {
  for (const int64_t limit : {1, 2, 3}) {
    SavingRun run = evaluating_run();
    run.spec.evaluation.greater_is_better = true;
    run.spec.saving.total_limit = limit;
    std::vector<std::string> during;
    const std::vector<double> losses = losses_of(run.run({}, [&](const StepMetrics& step) {
      if (step.step == 6) during = checkpoints_in(run.output());
    }));
    EXPECT_THAT(during, testing::Contains("checkpoint-1"));
    std::vector<std::string> expected = {"checkpoint-1", "checkpoint-5", "checkpoint-6"};
    if (limit == 2) expected = {"checkpoint-1", "checkpoint-6"};
    if (limit == 1) expected = {"checkpoint-1"};  // at the end of the run
    EXPECT_EQ(checkpoints_in(run.output()), expected) << "limit " << limit;
    expect_best_model(run, losses, "limited");
  }
}

TEST(EarlyStopping, EndsTheRunWithItsModel) {
  SavingRun run = evaluating_run({1, 2});
  run.spec.evaluation.early_stopping_patience = 2;
  run.spec.evaluation.early_stopping_threshold = 100;  // only the first evaluation counts as better
  const RecordingObserver seen = run.run();
  EXPECT_EQ(seen.evaluations.size(), 3u);
  EXPECT_EQ(seen.summary.stop_signal, 0);
  EXPECT_EQ(seen.summary.num_steps, 3);
  const nlohmann::json state = read_json(run.output() / "trainer_state.json");
  EXPECT_EQ(state.at("global_step"), 3);
  EXPECT_EQ(
      state.at("stateful_callbacks").at("EarlyStoppingCallback"),
      nlohmann::json::parse(R"({"args": {"early_stopping_patience": 2, "early_stopping_threshold": 100.0},
                                      "attributes": {"early_stopping_patience_counter": 2}})"));
  expect_best_model(run, losses_of(seen), "early");

  run.spec.resume = parse_resume("true");
  EXPECT_TRUE(run.run().steps.empty()) << "nothing is left to do";
  run.spec.evaluation.early_stopping_patience = 3;
  EXPECT_EQ(run.run().steps.size(), 1u) << "one more evaluation is allowed";
}

TEST(EarlyStopping, CountsOnAfterAnInterruption) {
  SavingRun run = evaluating_run();
  run.spec.evaluation.early_stopping_patience = 3;
  run.spec.evaluation.early_stopping_threshold = 100;
  const std::vector<double> losses = losses_of(run.run());
  ASSERT_EQ(losses.size(), 4u);
  for (const int64_t step : {1, 2, 3}) {
    SavingRun resumed = run;
    resumed.interrupt_at(step, fmt::format("resumed-{}", step));
    resumed.spec.resume = parse_resume("true");
    EXPECT_EQ(std::ssize(resumed.run().steps), 4 - step);
    expect_best_model(resumed, losses, "resumed");
  }
}

// Hugging Face's Trainer neither steps the schedule nor looks for the best model there.
TEST(EvalOnStart, DoesNotCount) {
  SavingRun run = evaluating_run();
  run.spec.evaluation.on_start = true;
  const RecordingObserver seen = run.run();
  std::vector<double> losses = losses_of(seen);
  ASSERT_EQ(losses.size(), 7u);
  EXPECT_EQ(seen.logs.front().step, 0);
  losses.erase(losses.begin());
  expect_best_model(run, losses, "on start");
}

TEST(Perplexity, IsInTheLog) {
  SavingRun run = evaluating_run();
  run.run();
  int64_t num_logged = 0;
  const nlohmann::json state = read_json(run.output() / "trainer_state.json");
  for (const nlohmann::json& entry : state.at("log_history")) {
    if (!entry.contains("eval_loss")) continue;
    EXPECT_EQ(entry.at("eval_perplexity"), std::exp(entry.at("eval_loss_per_token").get<double>()));
    ++num_logged;
  }
  EXPECT_EQ(num_logged, 6);
  LogEntry overflow;
  overflow.values = {{"eval_loss", 1000.0}, {"eval_perplexity", kInfinity}};
  EXPECT_EQ(log_line_text(overflow), "{'eval_loss': 1000.0, 'eval_perplexity': inf, 'epoch': 0.0}");
}

}  // namespace
}  // namespace tessera
