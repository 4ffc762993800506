#include "train/evaluation/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/reference_loss.h"

namespace tessera {
namespace {

using testing::ElementsAre;

TEST(Evaluation, IsTheMeanOverAllTargetsAndLeavesTrainingAlone) {
  TinyRun tiny;
  const std::vector<double> plain = losses_of_steps(tiny.train());
  tiny.args.eval_dataset = {tiny.folder() / "eval.safetensors"};
  tiny.args.eval_strategy = "steps";
  tiny.args.eval_steps = 3;
  tiny.args.eval_on_start = true;
  tiny.args.per_device_eval_batch_size = 4;
  const RecordingObserver run = tiny.train();
  EXPECT_EQ(losses_of_steps(run), plain);
  ASSERT_EQ(run.evaluations.size(), 3u);  // at 0, 3 and 6
  const auto rows = random_rows(std::vector<int64_t>(5, 7), tiny_config().vocab_size, 4);
  EXPECT_NEAR(run.evaluations[0].loss, ReferenceLoss<double>(tiny.args.model).of(rows), 1e-5);
  EXPECT_NEAR(run.evaluations[2].loss, ReferenceLoss<double>(tiny.output()).of(rows), 1e-5);
  EXPECT_DOUBLE_EQ(run.evaluations[0].perplexity, std::exp(run.evaluations[0].loss));
  EXPECT_EQ(run.evaluations[0].num_rows, 5);
  EXPECT_EQ(run.evaluations[0].num_tokens, 35);
  EXPECT_EQ(run.evaluations[0].num_batches, 3);  // 18 tokens at once, as training needs: two rows
}

TEST(Evaluation, SaysThatWeightsOfSourcesDoNotCount) {
  TinyRun tiny;
  const std::string file = tiny.folder() / "eval.safetensors";
  tiny.args.eval_dataset = {file + ":0.9", file + ":0.1"};
  tiny.args.eval_strategy = "steps";
  tiny.args.eval_steps = 6;
  testing::internal::CaptureStderr();
  const RecordingObserver run = tiny.train();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              testing::HasSubstr("eval_dataset: weights have no effect"));
  ASSERT_EQ(run.evaluations.size(), 1u);
  EXPECT_EQ(run.evaluations[0].num_rows, 2 * 5);
}

TEST(Evaluation, RowsMayBeLongerThanThoseOfTraining) {
  TinyRun tiny;
  const auto rows = random_rows(std::vector<int64_t>(3, 30), tiny_config().vocab_size, 6);
  write_token_rows(tiny.folder() / "eval.safetensors", rows);
  tiny.args.eval_dataset = {tiny.folder() / "eval.safetensors"};
  tiny.args.eval_on_start = true;
  tiny.args.per_device_eval_batch_size = int64_t{1} << 62;
  const RecordingObserver run = tiny.train();
  EXPECT_NEAR(run.evaluations.at(0).loss, ReferenceLoss<double>(tiny.args.model).of(rows), 1e-5);
}

TEST(Evaluation, PlateauScheduleFollowsTheLoss) {
  TinyRun tiny;
  tiny.args.eval_dataset = {tiny.folder() / "eval.safetensors"};
  tiny.args.eval_strategy = "steps";
  tiny.args.eval_steps = 1;
  tiny.args.lr_scheduler_type = "reduce_lr_on_plateau";
  // No loss is better than the first by so much: every evaluation after it halves the rate.
  tiny.args.lr_scheduler_kwargs = R"({"patience": 0, "factor": 0.5, "threshold": 0.99})";
  tiny.args.max_steps = 4;
  std::vector<double> rates;
  for (const StepMetrics& step : tiny.train().steps) rates.push_back(step.learning_rate);
  EXPECT_THAT(rates, ElementsAre(0.01, 0.01, 0.005, 0.0025));
}

TEST(Evaluation, BatchesRespectRowsAndTokens) {
  TinyRun tiny;
  ThreadPool pool(1);
  DatasetOptions options;
  options.sources = {(tiny.folder() / "train.safetensors").string()};
  options.cache_folder = tiny.folder() / "cache";
  const Dataset dataset = Dataset::open(options, nullptr, tiny_config().vocab_size, pool);
  EXPECT_EQ(evaluation_batches(dataset, 4, 1000).size(), 4u);  // 4 + 4 + 4 + 2 rows
  EXPECT_EQ(evaluation_batches(dataset, 4, 18).size(), 7u);    // two rows of 9 tokens
  EXPECT_EQ(evaluation_batches(dataset, 4, 5).size(), 14u);    // a longer row is a batch of its own
  EXPECT_EQ(evaluation_limits(dataset, 4, 5).max_tokens, 9);
  EXPECT_EQ(evaluation_limits(dataset, 4, 1000).max_tokens, 36);
}

}  // namespace
}  // namespace tessera
