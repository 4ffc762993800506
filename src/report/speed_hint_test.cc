#include "report/speed_hint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using testing::HasSubstr;

// 100 s of steps on one rank, most of them products, with large passes.
SpeedInputs calm_run() {
  SpeedInputs inputs;
  inputs.times.num_steps = 100;
  inputs.times.steps_s = 100;
  inputs.times.steps = {.rows_s = 1,
                        .products_s = 80,
                        .attention_s = 6,
                        .elementwise_s = 6,
                        .wait_s = 2,
                        .optimizer_s = 4,
                        .other_s = 1};
  inputs.mfu = 0.612;
  inputs.pass_tokens = 4096;
  return inputs;
}

std::string hint(SpeedInputs inputs) {
  RunTimes& times = inputs.times;
  times.total_s = times.steps_s + times.evaluation_s + times.checkpoint_s + times.snapshot_s;
  return speed_hint(inputs);
}

TEST(SpeedHint, SaysSoIfNothingStandsOut) {
  SpeedInputs inputs = calm_run();
  EXPECT_EQ(hint(inputs), "products take 80 % of the time at MFU 0.61: the processor is the limit");
  inputs.mfu.reset();
  inputs.times.steps.products_s = 20;
  inputs.times.steps.attention_s = 70;
  EXPECT_EQ(hint(inputs), "attention takes 70 % of the time: the processor is the limit");
}

TEST(SpeedHint, IsSilentWithoutMeasurements) {
  EXPECT_EQ(speed_hint({}), "");
  SpeedInputs inputs = calm_run();
  inputs.times.num_steps = 9;
  EXPECT_EQ(hint(inputs), "");
  inputs = calm_run();
  inputs.times.steps = {};
  EXPECT_EQ(hint(inputs), "");
}

TEST(SpeedHint, ADiskThatIsWaitedForIsNamedWithWhatIsOnIt) {
  SpeedInputs inputs = calm_run();
  inputs.times.steps.products_s = 30;
  inputs.times.steps.disk_s = 50;
  inputs.disk = {.state_wait_s = 0.3, .weights_wait_s = 0.2};
  EXPECT_EQ(hint(inputs),
            "steps wait 50 % of the time for the disk, mostly for the optimizer's state: a faster disk, or "
            "more tokens in a step (a larger gradient_accumulation_steps) for each time it is moved");
  inputs.disk.inputs_wait_s = 1;
  EXPECT_THAT(hint(inputs), HasSubstr("mostly for inputs of layers: a faster disk, or "));
  inputs.times.steps.disk_s = 10;
  EXPECT_THAT(hint(inputs), HasSubstr("processor"));
}

TEST(SpeedHint, EvaluationsAboveAFifthAreNamed) {
  SpeedInputs inputs = calm_run();
  inputs.times.evaluation_s = 24;
  EXPECT_THAT(hint(inputs), HasSubstr("processor"));
  inputs.times.evaluation_s = 100;
  EXPECT_EQ(hint(inputs), "evaluations take 50 % of the time: a larger eval_steps or a smaller eval_dataset");
}

TEST(SpeedHint, CheckpointsThatTrainingWaitsFor) {
  SpeedInputs inputs = calm_run();
  inputs.times.checkpoint_s = 5;
  EXPECT_THAT(hint(inputs), HasSubstr("processor"));
  inputs.times.checkpoint_s = 25;
  EXPECT_THAT(hint(inputs), testing::StartsWith("training waits for checkpoints 20 % of the time: a larger "
                                                "save_steps"));
  inputs.async_save = false;
  EXPECT_THAT(hint(inputs), HasSubstr("async_save true"));
  inputs.times.checkpoint_s = 0;
  inputs.times.checkpoint_stall_s = 25;
  EXPECT_THAT(hint(inputs), HasSubstr("async_save true")) << "what steps were held up";
  inputs.times.checkpoint_stall_s = 0;
  inputs.times.snapshot_s = 25;
  EXPECT_THAT(hint(inputs), HasSubstr("peer_snapshot_steps"));
}

TEST(SpeedHint, WaitingDependsOnWhoIsWaitedFor) {
  SpeedInputs inputs = calm_run();
  inputs.times.steps.products_s -= 40;
  inputs.times.steps.wait_s += 40;
  EXPECT_THAT(hint(inputs), HasSubstr("processor")) << "a rank alone waits for nobody";
  inputs.world_size = 4;
  EXPECT_EQ(hint(inputs),
            "ranks wait 42 % of the time for each other: fewer ranks with more threads, or more rows in a "
            "step, which divide more evenly");
  inputs.num_nodes = 2;
  EXPECT_THAT(hint(inputs), HasSubstr("gradient_accumulation_steps sends no more for more tokens"));
}

TEST(SpeedHint, CheckpointingIsNamedOnlyWhileMemoryIsFree) {
  SpeedInputs inputs = calm_run();
  inputs.gradient_checkpointing = true;
  EXPECT_THAT(hint(inputs), HasSubstr("processor"));
  inputs.fits_without_checkpointing = true;
  EXPECT_EQ(hint(inputs),
            "memory suffices without gradient_checkpointing: false saves the second forward pass, up to 23 % "
            "of the time");
}

TEST(SpeedHint, OptimizerRowsAndIdleCores) {
  SpeedInputs inputs = calm_run();
  inputs.times.steps.optimizer_s = 40;
  EXPECT_THAT(hint(inputs), testing::StartsWith("the optimizer takes 40 % of the time"));
  inputs = calm_run();
  inputs.times.steps.rows_s = 30;
  EXPECT_THAT(hint(inputs), testing::StartsWith("choosing and reading rows takes 30 %"));
  inputs = calm_run();
  inputs.num_threads = 3;
  inputs.num_cores = 8;
  EXPECT_EQ(hint(inputs), "num_threads 3 leaves 5 of 8 cores idle: leave it out");
}

TEST(SpeedHint, SmallPassesAreNamedWithoutAPromise) {
  SpeedInputs inputs = calm_run();
  inputs.pass_tokens = 128;
  EXPECT_EQ(hint(inputs),
            "products take 80 % of the time; a pass has 128 tokens only: a larger "
            "per_device_train_batch_size multiplies each weight by more of them at once");
}

TEST(SpeedHint, TheLargestGainComesFirst) {
  SpeedInputs inputs = calm_run();
  inputs.gradient_checkpointing = inputs.fits_without_checkpointing = true;  // up to 15 % of 150 s
  inputs.times.evaluation_s = 50;                                            // half of 33 %
  EXPECT_THAT(hint(inputs), testing::StartsWith("evaluations"));
  inputs.times.evaluation_s = 30;  // half of 23 %, against 18 %
  EXPECT_THAT(hint(inputs), testing::StartsWith("memory suffices"));
}

}  // namespace
}  // namespace tessera
