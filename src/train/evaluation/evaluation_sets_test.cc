// Several evaluation sets by name, as a dict of data sets in Transformers 5.24.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/checkpoint_files.h"
#include "expect_error.h"
#include "support/train/saving_run.h"

namespace tessera {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// A run of 6 steps that evaluates on two sets after every second one.
SavingRun run_with_sets(const Ranks& ranks = {}) {
  SavingRun run(ranks);
  write_token_rows(run.folder() / "news.safetensors", random_rows({9, 9, 9}, tiny_config().vocab_size, 21));
  write_token_rows(run.folder() / "code.safetensors",
                   random_rows({5, 5, 5, 5, 5}, tiny_config().vocab_size, 22));
  run.spec.data.eval_dataset = {"news=" + (run.folder() / "news.safetensors").string(),
                                "code=" + (run.folder() / "code.safetensors").string()};
  run.spec.evaluation.strategy = IntervalStrategy::kSteps;
  run.spec.evaluation.steps = 2;
  run.spec.evaluation.rows_per_device = 2;
  return run;
}

std::vector<std::string> names_of(const LogEntry& entry) {
  std::vector<std::string> names;
  for (const auto& [name, value] : entry.values) names.push_back(name);
  return names;
}

std::vector<double> values_of(const RecordingObserver& found, const std::string& metric) {
  std::vector<double> values;
  for (const LogEntry& entry : found.logs) {
    for (const auto& [name, value] : entry.values)
      if (name == metric) values.push_back(std::get<double>(value));
  }
  return values;
}

TEST(EvaluationSets, EachIsEvaluatedByItselfInTheirOrder) {
  SavingRun run = run_with_sets();
  run.spec.evaluation.on_start = true;
  const RecordingObserver found = run.run();
  std::vector<std::string> firsts;
  for (const LogEntry& entry : found.logs)
    firsts.push_back(fmt::format("{} {}", entry.step, entry.values[0].first));
  EXPECT_THAT(firsts, ElementsAre("0 eval_news_loss", "0 eval_code_loss", "2 loss", "2 eval_news_loss",
                                  "2 eval_code_loss", "4 loss", "4 eval_news_loss", "4 eval_code_loss",
                                  "6 loss", "6 eval_news_loss", "6 eval_code_loss", "6 train_runtime"));
  EXPECT_THAT(names_of(found.logs[1]),
              ElementsAre("eval_code_loss", "eval_code_loss_per_token", "eval_code_perplexity",
                          "eval_code_runtime", "eval_code_samples_per_second", "eval_code_steps_per_second"));
  EXPECT_EQ(found.plan.eval_rows, 8);
  for (const size_t set : {0u, 1u}) {
    SavingRun alone = run_with_sets();
    alone.spec.evaluation.on_start = true;
    alone.spec.data.eval_dataset = {alone.spec.data.eval_dataset[set].substr(5)};
    EXPECT_EQ(values_of(found, set == 0 ? "eval_news_loss" : "eval_code_loss"),
              values_of(alone.run(), "eval_loss"));
  }
}

TEST(EvaluationSets, OneOfThemChoosesTheBestModel) {
  for (const Ranks& ranks : {Ranks{1, 1}, Ranks{2, 1}}) {
    SavingRun run = run_with_sets(ranks);
    run.spec.saving.steps = 2;
    run.spec.evaluation.load_best_model = true;
    run.spec.evaluation.metric = "eval_code_loss";
    run.spec.evaluation.greater_is_better = true;
    const RecordingObserver found = run.run();
    const std::vector<double> losses = values_of(found, "eval_code_loss");
    ASSERT_EQ(losses.size(), 3u);
    const auto best = std::ranges::max_element(losses) - losses.begin();
    const nlohmann::json state = read_json(run.output() / "trainer_state.json");
    EXPECT_EQ(state.at("best_global_step"), 2 * (best + 1));
    EXPECT_EQ(state.at("best_metric"), losses[static_cast<size_t>(best)]);
    EXPECT_EQ(read_tensors(run.output()), read_tensors(run.output() / checkpoint_name(2 * (best + 1))));
    ASSERT_TRUE(found.summary.best_evaluation);
    EXPECT_EQ(found.summary.best_evaluation->set, "code");
    EXPECT_EQ(found.summary.best_evaluation->loss, *std::ranges::min_element(losses));
  }
}

TEST(EvaluationSets, EarlyStoppingCountsAnEvaluationOfAllSetsOnce) {
  SavingRun run = run_with_sets();
  run.spec.evaluation.steps = 1;
  run.spec.evaluation.metric = "eval_news_loss";
  run.spec.evaluation.greater_is_better = true;  // the loss falls: the first is the best
  run.spec.evaluation.early_stopping_patience = 3;
  const RecordingObserver found = run.run();
  EXPECT_EQ(found.summary.num_steps, 4);
  EXPECT_EQ(values_of(found, "eval_code_loss").size(), 4u);
}

TEST(EvaluationSets, AResumedRunMayHaveOthers) {
  SavingRun run = run_with_sets();
  run.spec.evaluation.metric = "eval_news_loss";
  run.spec.evaluation.greater_is_better = false;
  run.run();
  run.interrupt_at(4, "resumed");
  run.spec.data.eval_dataset = {"wiki" + run.spec.data.eval_dataset[1].substr(4)};
  run.spec.evaluation.metric = "eval_wiki_loss";
  run.spec.resume = parse_resume("true");
  testing::internal::CaptureStderr();
  const RecordingObserver found = run.run();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("does not count for metric_for_best_model eval_wiki_loss"));
  EXPECT_THAT(found.differences, HasSubstr("eval_dataset"));
  EXPECT_EQ(values_of(found, "eval_wiki_loss").size(), 1u) << "step 4 was evaluated, on the other sets";
}

TEST(EvaluationSets, AnInterruptedEvaluationRunsAgainAsAWhole) {
  SavingRun run = run_with_sets();
  const RecordingObserver whole = run.run();
  SavingRun stopped = run_with_sets();
  stopped.spec.batch.max_steps = 6;
  // The signal comes in the second evaluation of a set after step 2.
  const RecordingObserver first = stopped.run_until_signal(2);
  EXPECT_TRUE(values_of(first, "eval_news_loss").empty());
  stopped.spec.resume = parse_resume("true");
  const RecordingObserver second = stopped.run();
  EXPECT_EQ(values_of(second, "eval_news_loss"), values_of(whole, "eval_news_loss"));
  EXPECT_EQ(values_of(second, "eval_code_loss"), values_of(whole, "eval_code_loss"));
}

}  // namespace
}  // namespace tessera
