#include "report/speed_hint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace tessera {
namespace {

using testing::HasSubstr;

// 100 s of steps on one rank, most of them products, with large passes.
SpeedFacts calm_run() {
  SpeedFacts facts;
  facts.times.num_steps = 100;
  facts.times.steps_s = 100;
  facts.times.steps = {.rows_s = 1,
                       .products_s = 80,
                       .attention_s = 6,
                       .elementwise_s = 6,
                       .wait_s = 2,
                       .optimizer_s = 4,
                       .other_s = 1};
  facts.mfu = 0.612;
  facts.pass_tokens = 4096;
  return facts;
}

std::string hint(SpeedFacts facts) {
  RunTimes& times = facts.times;
  times.total_s = times.steps_s + times.evaluation_s + times.checkpoint_s + times.snapshot_s;
  return speed_hint(facts);
}

TEST(SpeedHint, SaysSoIfNothingStandsOut) {
  SpeedFacts facts = calm_run();
  EXPECT_EQ(hint(facts), "products take 80 % of the time at MFU 0.61: the processor is the limit");
  facts.mfu.reset();
  facts.times.steps.products_s = 20;
  facts.times.steps.attention_s = 70;
  EXPECT_EQ(hint(facts), "attention takes 70 % of the time: the processor is the limit");
}

TEST(SpeedHint, IsSilentWithoutMeasurements) {
  EXPECT_EQ(speed_hint({}), "");
  SpeedFacts facts = calm_run();
  facts.times.num_steps = 9;
  EXPECT_EQ(hint(facts), "");
  facts = calm_run();
  facts.times.steps = {};
  EXPECT_EQ(hint(facts), "");
}

TEST(SpeedHint, ADiskThatIsWaitedForIsNamedWithWhatIsOnIt) {
  SpeedFacts facts = calm_run();
  facts.times.steps.products_s = 30;
  facts.times.steps.disk_s = 50;
  facts.disk = {.state_wait_s = 0.3, .weights_wait_s = 0.2};
  EXPECT_EQ(hint(facts),
            "steps wait 50 % of the time for the disk, mostly for the optimizer's state: a faster disk, or "
            "more tokens in a step (a larger gradient_accumulation_steps) for each time it is moved");
  facts.disk.inputs_wait_s = 1;
  EXPECT_THAT(hint(facts), HasSubstr("mostly for inputs of layers: a faster disk, or "));
  facts.times.steps.disk_s = 10;
  EXPECT_THAT(hint(facts), HasSubstr("processor"));
}

TEST(SpeedHint, EvaluationsAboveAFifthAreNamed) {
  SpeedFacts facts = calm_run();
  facts.times.evaluation_s = 24;
  EXPECT_THAT(hint(facts), HasSubstr("processor"));
  facts.times.evaluation_s = 100;
  EXPECT_EQ(hint(facts), "evaluations take 50 % of the time: a larger eval_steps or a smaller eval_dataset");
}

TEST(SpeedHint, CheckpointsThatTrainingWaitsFor) {
  SpeedFacts facts = calm_run();
  facts.times.checkpoint_s = 5;
  EXPECT_THAT(hint(facts), HasSubstr("processor"));
  facts.times.checkpoint_s = 25;
  EXPECT_THAT(hint(facts), testing::StartsWith("training waits for checkpoints 20 % of the time: a larger "
                                               "save_steps"));
  facts.async_save = false;
  EXPECT_THAT(hint(facts), HasSubstr("async_save true"));
  facts.times.checkpoint_s = 0;
  facts.times.checkpoint_stall_s = 25;
  EXPECT_THAT(hint(facts), HasSubstr("async_save true")) << "what steps were held up";
  facts.times.checkpoint_stall_s = 0;
  facts.times.snapshot_s = 25;
  EXPECT_THAT(hint(facts), HasSubstr("peer_snapshot_steps"));
}

TEST(SpeedHint, WaitingDependsOnWhoIsWaitedFor) {
  SpeedFacts facts = calm_run();
  facts.times.steps.products_s -= 40;
  facts.times.steps.wait_s += 40;
  EXPECT_THAT(hint(facts), HasSubstr("processor")) << "a rank alone waits for nobody";
  facts.world_size = 4;
  EXPECT_EQ(hint(facts),
            "ranks wait 42 % of the time for each other: fewer ranks with more threads, or more rows in a "
            "step, which divide more evenly");
  facts.num_nodes = 2;
  EXPECT_THAT(hint(facts), HasSubstr("gradient_accumulation_steps sends no more for more tokens"));
}

TEST(SpeedHint, CheckpointingIsNamedOnlyWhileMemoryIsFree) {
  SpeedFacts facts = calm_run();
  facts.gradient_checkpointing = true;
  EXPECT_THAT(hint(facts), HasSubstr("processor"));
  facts.fits_without_checkpointing = true;
  EXPECT_EQ(hint(facts),
            "memory suffices without gradient_checkpointing: false saves the second forward pass, up to 23 % "
            "of the time");
}

TEST(SpeedHint, OptimizerRowsAndIdleCores) {
  SpeedFacts facts = calm_run();
  facts.times.steps.optimizer_s = 40;
  EXPECT_THAT(hint(facts), testing::StartsWith("the optimizer takes 40 % of the time"));
  facts = calm_run();
  facts.times.steps.rows_s = 30;
  EXPECT_THAT(hint(facts), testing::StartsWith("choosing and reading rows takes 30 %"));
  facts = calm_run();
  facts.num_threads = 3;
  facts.num_cores = 8;
  EXPECT_EQ(hint(facts), "num_threads 3 leaves 5 of 8 cores idle: leave it out");
}

TEST(SpeedHint, SmallPassesAreNamedWithoutAPromise) {
  SpeedFacts facts = calm_run();
  facts.pass_tokens = 128;
  EXPECT_EQ(hint(facts),
            "products take 80 % of the time; a pass has 128 tokens only: a larger "
            "per_device_train_batch_size multiplies each weight by more of them at once");
}

TEST(SpeedHint, TheLargestGainComesFirst) {
  SpeedFacts facts = calm_run();
  facts.gradient_checkpointing = facts.fits_without_checkpointing = true;  // up to 15 % of 150 s
  facts.times.evaluation_s = 50;                                           // half of 33 %
  EXPECT_THAT(hint(facts), testing::StartsWith("evaluations"));
  facts.times.evaluation_s = 30;  // half of 23 %, against 18 %
  EXPECT_THAT(hint(facts), testing::StartsWith("memory suffices"));
}

}  // namespace
}  // namespace tessera
