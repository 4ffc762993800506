// Steps whose ranks have targets of different number, or none at all, as in Transformers' Trainer 5.24.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/train/reference_loss.h"
#include "support/train/train_test_support.h"

namespace tessera {
namespace {

using testing::HasSubstr;

// Rows of 9 tokens; the last num_targets[i] of row i are targets.
std::vector<TokenRow> rows_with_targets(const std::vector<int64_t>& num_targets) {
  std::vector<TokenRow> rows =
      random_rows(std::vector<int64_t>(num_targets.size(), 9), tiny_config().vocab_size, 5);
  for (size_t i = 0; i < rows.size(); ++i) {
    for (size_t t = 0; t < 9; ++t)
      rows[i].labels[t] = static_cast<int64_t>(t) < 9 - num_targets[i] ? -100 : rows[i].ids[t];
  }
  return rows;
}

struct RunOver : TinyRun {
  RunOver(const std::vector<TokenRow>& rows, int64_t micro_batch) {
    write_token_rows(folder() / "train.safetensors", rows);
    spec.batch.rows_per_device = micro_batch;
    spec.batch.accumulation_steps = 1;
    spec.batch.max_steps = 1;
  }
};

// Rank 0 has twice the targets of rank 1: its mean counts as much as rank 1's rows taken twice.
TEST(AverageTokensAcrossDevices, FalseIsTheMeanOfTheRanksMeans) {
  std::vector<TokenRow> rows = rows_with_targets({8, 6, 4, 3});
  RunOver two(rows, 2);
  two.spec.objective.average_tokens_across_devices = false;
  const RecordingObserver found = train_ranks(two.spec, {1, 2}).front();
  rows.insert(rows.end(), {rows[2], rows[3]});
  const RunOver one(rows, 6);
  const RecordingObserver expected = one.train();
  EXPECT_NEAR(found.steps.at(0).loss, expected.steps.at(0).loss, 1e-6);
  EXPECT_NEAR(found.steps.at(0).grad_norm, expected.steps.at(0).grad_norm, 1e-5);
  expect_close_weights(two.output(), one.output());
}

// Two micro-batches of a rank count by their targets.
TEST(AverageTokensAcrossDevices, FalseIsTheMeanOverAllTokensOfARank) {
  const std::vector<TokenRow> rows = rows_with_targets({8, 2, 5, 1});
  RunOver run(rows, 1);
  run.spec.batch.accumulation_steps = 2;
  run.spec.objective.average_tokens_across_devices = false;
  const RecordingObserver found = train_ranks(run.spec, {1, 2}).front();
  const ReferenceLoss<double> reference(run.spec.model.folder);
  EXPECT_NEAR(found.steps.at(0).loss,
              (reference.of({rows[0], rows[2]}) + reference.of({rows[1], rows[3]})) / 2, 1e-5);
}

TEST(StepWithoutTargets, HasNoLossAndUpdatesFromMomentumAlone) {
  RunOver run(rows_with_targets({8, 8, 0, 0, 8, 8}), 2);
  run.spec.batch.max_steps = 3;
  run.spec.reporting.logging_steps = 1;
  testing::internal::CaptureStderr();
  const RecordingObserver found = run.train();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("step 2: its rows have no token to predict"));
  ASSERT_EQ(found.steps.size(), 3u);
  EXPECT_EQ(found.steps[1].loss, 0);
  EXPECT_EQ(found.steps[1].grad_norm, 0);
  EXPECT_FALSE(found.steps[1].skipped);
  EXPECT_GT(found.steps[2].loss, 0);
  RunOver short_run(rows_with_targets({8, 8, 0, 0, 8, 8}), 2);
  RunOver shorter(rows_with_targets({8, 8, 0, 0, 8, 8}), 2);
  short_run.spec.batch.max_steps = 2;
  short_run.train();
  shorter.train();
  EXPECT_NE(read_tensors(short_run.output()), read_tensors(shorter.output())) << "momentum moves weights";
}

// Trainer of Transformers 5.24 on six rows in order, the second and fifth without labels, learning rate 0,
// with logging_steps 3: (a + a / 2 + b) / 3 of the losses a and b of the others; and with two micro-batches
// that have none in a step of its own: a (1 + 1 / 2)^2.
TEST(StepWithoutTargets, CountsInLogsAsInTransformers) {
  for (const int64_t num_micro_batches : {1, 2}) {
    std::vector<int64_t> targets;
    for (const int64_t of_step : {8, 0, 7})
      targets.insert(targets.end(), static_cast<size_t>(num_micro_batches), of_step);
    RunOver run(rows_with_targets(targets), 1);
    run.spec.batch.accumulation_steps = num_micro_batches;
    run.spec.batch.max_steps = 3;
    run.spec.reporting.logging_steps = 3;
    run.spec.data.shuffle = false;
    const RecordingObserver found = run.train();
    const double a = found.steps.at(0).loss, b = found.steps.at(2).loss;
    const double expected = (a * std::pow(1.5, num_micro_batches) + b) / 3;
    EXPECT_NEAR(std::get<double>(found.logs.at(0).values.at(0).second), expected, 1e-12);
    EXPECT_NEAR(found.summary.train_loss, expected, 1e-12);
  }
}

TEST(StepWithoutTargets, OneRankMayHaveNone) {
  RunOver run(rows_with_targets({8, 8, 0, 0}), 2);
  const RecordingObserver found = train_ranks(run.spec, {1, 2}).front();
  const std::vector<TokenRow> rows = rows_with_targets({8, 8});
  const double loss = ReferenceLoss<double>(run.spec.model.folder).of(rows);
  EXPECT_NEAR(found.steps.at(0).loss, loss, 1e-5);
  run.spec.objective.average_tokens_across_devices = false;
  run.spec.output_dir = run.folder() / "means";
  EXPECT_NEAR(train_ranks(run.spec, {1, 2}).front().steps.at(0).loss, loss / 2, 1e-5);
}

TEST(SmallDataset, IsOneShortStepPerEpoch) {
  const std::vector<TokenRow> rows = rows_with_targets({8, 3, 5});
  RunOver run(rows, 64);
  run.spec.batch.max_steps = -1;
  run.spec.batch.num_epochs = 3;
  testing::internal::CaptureStderr();
  const RecordingObserver found = run.train();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("the dataset has 3 rows, one step takes 64"));
  ASSERT_EQ(found.steps.size(), 3u);
  EXPECT_NEAR(found.steps[0].loss, ReferenceLoss<double>(run.spec.model.folder).of(rows), 1e-5);
  EXPECT_EQ(found.steps[2].num_target_tokens, 16);
  EXPECT_EQ(found.steps[2].epoch, 3);
}

}  // namespace
}  // namespace tessera
