#include "train/evaluation/evaluate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/train/reference_loss.h"

namespace tessera {
namespace {

using testing::ElementsAre;

TEST(Evaluation, PerTokenIsTheMeanOverAllTargetsAndLeavesTrainingAlone) {
  TinyRun tiny;
  const std::vector<double> plain = losses_of_steps(tiny.train());
  tiny.spec.data.eval_dataset = {tiny.folder() / "eval.safetensors"};
  tiny.spec.evaluation.strategy = IntervalStrategy::kSteps;
  tiny.spec.evaluation.steps = 3;
  tiny.spec.evaluation.on_start = true;
  tiny.spec.evaluation.rows_per_device = 4;
  const RecordingObserver run = tiny.train();
  EXPECT_EQ(losses_of_steps(run), plain);
  ASSERT_EQ(run.evaluations.size(), 3u);  // at 0, 3 and 6
  const auto rows = random_rows(std::vector<int64_t>(5, 7), tiny_config().vocab_size, 4);
  EXPECT_NEAR(run.evaluations[0].loss_per_token, ReferenceLoss<double>(tiny.spec.model.folder).of(rows),
              1e-5);
  EXPECT_NEAR(run.evaluations[2].loss_per_token, ReferenceLoss<double>(tiny.output()).of(rows), 1e-5);
  EXPECT_DOUBLE_EQ(run.evaluations[0].perplexity, std::exp(run.evaluations[0].loss_per_token));
  EXPECT_EQ(run.evaluations[0].num_rows, 5);
  EXPECT_EQ(run.evaluations[0].num_tokens, 35);
  EXPECT_EQ(run.evaluations[0].num_batches, 2);
}

TEST(Evaluation, SaysThatWeightsOfSourcesDoNotCount) {
  TinyRun tiny;
  const std::string file = tiny.folder() / "eval.safetensors";
  tiny.spec.data.eval_dataset = {file + ":0.9", file + ":0.1"};
  tiny.spec.evaluation.strategy = IntervalStrategy::kSteps;
  tiny.spec.evaluation.steps = 6;
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
  tiny.spec.data.eval_dataset = {tiny.folder() / "eval.safetensors"};
  tiny.spec.evaluation.on_start = true;
  tiny.spec.evaluation.rows_per_device = int64_t{1} << 62;
  const RecordingObserver run = tiny.train();
  EXPECT_NEAR(run.evaluations.at(0).loss, ReferenceLoss<double>(tiny.spec.model.folder).of(rows), 1e-5);
}

TEST(Evaluation, PlateauScheduleFollowsTheLoss) {
  TinyRun tiny;
  tiny.spec.data.eval_dataset = {tiny.folder() / "eval.safetensors"};
  tiny.spec.evaluation.strategy = IntervalStrategy::kSteps;
  tiny.spec.evaluation.steps = 1;
  // No loss is better than the first by so much: every evaluation after it halves the rate.
  tiny.spec.schedule.form = ReduceLrOnPlateau{.factor = 0.5, .patience = 0, .threshold = 0.99};
  tiny.spec.batch.max_steps = 4;
  std::vector<double> rates;
  for (const StepMetrics& step : tiny.train().steps) rates.push_back(step.learning_rate);
  EXPECT_THAT(rates, ElementsAre(0.01, 0.01, 0.005, 0.0025));
}

TEST(Evaluation, PartsRespectBatchesAndTokens) {
  const auto parts = [](int64_t num_rows, int64_t max_rows, int64_t max_tokens, int64_t num_ranks = 1) {
    std::vector<std::vector<int64_t>> rows;
    for (const EvalPart& part :
         evaluation_parts(num_rows, [](int64_t) { return 9; },
                          {.max_rows = max_rows, .max_tokens = max_tokens, .num_ranks = num_ranks}))
      rows.push_back(part.rows);
    return rows;
  };
  EXPECT_THAT(parts(5, 4, 1000), ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4)));
  EXPECT_THAT(parts(5, 4, 18), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
  EXPECT_EQ(parts(5, 4, 5).size(), 5u);  // a longer row is a part of its own
  EXPECT_THAT(parts(3, int64_t{1} << 62, 1000), ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_THAT(parts(5, 2, 1000, 2), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4),
                                                ElementsAre(0), ElementsAre(1, 2)));
}

// Trainer.evaluate() of Transformers 5.24 on 1 to 3 ranks. Row i has 2 + 5i mod 7 tokens, which are targets
// unless i mod 6 is 4, and a loss of 1 + 7i mod 5 + i / 8 per target.
struct StoredEvaluation {
  int64_t num_ranks, num_rows, max_rows;
  bool drop_last, averages_tokens;
  double loss;
};
constexpr StoredEvaluation kStoredEvaluations[] = {
    {1, 1, 1, false, true, 1.0000000},  {1, 1, 1, true, true, 1.0000000},
    {1, 5, 2, false, true, 3.5565476},  {1, 5, 2, true, true, 3.5565476},
    {1, 7, 2, false, true, 3.0323129},  {1, 7, 2, true, true, 2.9126984},
    {1, 8, 4, false, true, 3.1527778},  {1, 8, 4, true, true, 3.1527778},
    {1, 9, 8, false, true, 3.1919192},  {1, 9, 8, true, true, 3.2159091},
    {1, 12, 2, false, true, 3.5407242}, {1, 12, 2, true, true, 3.5407242},
    {1, 13, 3, false, true, 3.6624750}, {1, 13, 3, true, true, 3.4260146},
    {1, 23, 4, false, true, 4.0417065}, {1, 23, 4, true, true, 4.0432750},
    {2, 1, 1, false, true, 1.0000000},  {2, 1, 1, false, false, 1.0000000},
    {2, 5, 2, false, true, 2.8363636},  {2, 5, 2, false, false, 3.0452381},
    {2, 5, 2, true, true, 3.5000000},   {2, 5, 2, true, false, 3.5565476},
    {2, 7, 2, false, true, 2.9047619},  {2, 7, 2, false, false, 2.9340986},
    {2, 7, 2, true, true, 3.5000000},   {2, 7, 2, true, false, 3.5565476},
    {2, 8, 4, false, true, 3.2159091},  {2, 8, 4, false, false, 3.1527778},
    {2, 8, 4, true, true, 3.2159091},   {2, 8, 4, true, false, 3.1527778},
    {2, 9, 8, false, true, 2.9427438},  {2, 9, 8, false, false, 3.1996352},
    {2, 12, 2, false, true, 3.4572440}, {2, 12, 2, false, false, 3.5407242},
    {2, 12, 2, true, true, 3.4572440},  {2, 12, 2, true, false, 3.5407242},
    {2, 13, 3, false, true, 3.7171856}, {2, 13, 3, false, false, 3.4974109},
    {2, 13, 3, true, true, 3.5431548},  {2, 13, 3, true, false, 3.4260146},
    {2, 23, 4, false, true, 4.2155450}, {2, 23, 4, false, false, 3.9626304},
    {2, 23, 4, true, true, 3.7251420},  {2, 23, 4, true, false, 3.6991830},
    {3, 1, 1, false, true, 1.0000000},  {3, 1, 1, false, false, 1.0000000},
    {3, 5, 2, false, true, 3.9428571},  {3, 5, 2, false, false, 3.0452381},
    {3, 7, 2, false, true, 2.8816964},  {3, 7, 2, false, false, 2.9340986},
    {3, 7, 2, true, true, 2.9791667},   {3, 7, 2, true, false, 2.9126984},
    {3, 8, 4, false, true, 3.0321429},  {3, 8, 4, false, false, 3.1527778},
    {3, 9, 8, false, true, 2.9228604},  {3, 9, 8, false, false, 3.1996352},
    {3, 12, 2, false, true, 3.5431548}, {3, 12, 2, false, false, 3.5407242},
    {3, 12, 2, true, true, 3.5431548},  {3, 12, 2, true, false, 3.5407242},
    {3, 13, 3, false, true, 3.8306413}, {3, 13, 3, false, false, 3.4974109},
    {3, 13, 3, true, true, 3.1696429},  {3, 13, 3, true, false, 3.0187771},
    {3, 23, 4, false, true, 4.2511927}, {3, 23, 4, false, false, 3.9626304},
    {3, 23, 4, true, true, 3.5865385},  {3, 23, 4, true, false, 3.4572440},
};

TEST(Evaluation, LossIsTheTrainersOnSeveralRanks) {
  const auto length = [](int64_t row) { return 2 + row * 5 % 7; };
  for (const StoredEvaluation& stored : kStoredEvaluations) {
    for (const int64_t max_tokens : {int64_t{1}, int64_t{10}, int64_t{1000}}) {
      const EvalOptions options = {.max_rows = stored.max_rows,
                                   .max_tokens = max_tokens,
                                   .num_ranks = stored.num_ranks,
                                   .drop_last = stored.drop_last,
                                   .averages_tokens = stored.averages_tokens};
      const std::vector<EvalPart> parts = evaluation_parts(stored.num_rows, length, options);
      std::vector<double> losses, targets;
      int64_t num_rows = 0;
      for (const EvalPart& part : parts) {
        losses.resize(static_cast<size_t>(part.batch) + 1);
        targets.resize(losses.size());
        if (!part.is_repeated) num_rows += std::ssize(part.rows);
        for (const int64_t row : part.rows) {
          const auto count = static_cast<double>(row % 6 == 4 ? 0 : length(row) - 1);
          losses.back() += count * (1 + static_cast<double>(row * 7 % 5) + static_cast<double>(row) / 8);
          targets.back() += count;
        }
      }
      EXPECT_NEAR(mean_over_rows(losses, targets, num_rows, options), stored.loss, 1e-6)
          << stored.num_ranks << " ranks, " << stored.num_rows << " rows, batches of " << stored.max_rows;
    }
  }
}

}  // namespace
}  // namespace tessera
