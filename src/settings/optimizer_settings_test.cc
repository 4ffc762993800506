#include <gmock/gmock.h>

#include <utility>

#include "base/error.h"
#include "settings/derived.h"
#include "support/settings/arguments_test_support.h"

namespace tessera {
namespace {

using testing::HasSubstr;

using OptimizerArguments = ArgumentsTest;

TEST_F(OptimizerArguments, StateThatIsNotByElementsIsNotCopied) {
  for (const char* optim : {"muon", "adafactor"}) {
    give("optim", optim);
    give("peer_snapshot_steps", "5");
    EXPECT_THAT(contradiction(), HasSubstr(std::string("peer_snapshot_steps 5 contradicts optim ") + optim));
    give("peer_snapshot_steps", "0");
    resolve();
  }
}

TEST_F(OptimizerArguments, MuonsSettingsWithoutItAreWarnedOf) {
  give("muon_momentum", "0.9");
  testing::internal::CaptureStderr();
  resolve();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("muon_momentum has no effect: optim is adamw_torch"));
  EXPECT_THAT(refusal("muon_momentum", "1"), HasSubstr("from 0 to below 1"));
}

TEST_F(OptimizerArguments, DeepSpeedsMuonIsMuonWithItsRateAndDefaults) {
  give("deepspeed", R"({"train_micro_batch_size_per_gpu": "auto",
                        "optimizer": {"type": "Muon", "params": {"lr": 0.02, "momentum": 0.9}}})");
  resolve();
  EXPECT_EQ(spec_.optimizer.form, OptimizerForm::kMuon);
  EXPECT_EQ(spec_.schedule.learning_rate, 0.02);
  EXPECT_EQ(spec_.optimizer.muon_momentum, 0.9);
  EXPECT_EQ(spec_.optimizer.muon_rate, MuonRate::kOriginal);
  EXPECT_EQ(spec_.optimizer.beta2, 0.95);
  EXPECT_EQ(spec_.optimizer.epsilon, 1e-10);
  give("optim", "adamw_torch");
  EXPECT_THAT(contradiction(), HasSubstr("optimizer.type Muon and optim adamw_torch"));
}

// --deepspeed with this optimizer.
std::string deepspeed_with(const std::string& optimizer) {
  return R"({"train_micro_batch_size_per_gpu": "auto", "optimizer": )" + optimizer + "}";
}

TEST_F(OptimizerArguments, DeepSpeedsLionIsLionWithItsDefaults) {
  give("deepspeed", deepspeed_with(R"({"type": "lion", "params": {"weight_decay": 0.3}})"));
  resolve();
  EXPECT_EQ(spec_.optimizer.form, OptimizerForm::kLion);
  EXPECT_TRUE(spec_.sources.given.contains("optim")) << "no form of AdamW may replace it";
  EXPECT_EQ(spec_.schedule.learning_rate, 1e-3);
  EXPECT_EQ(spec_.optimizer.weight_decay, 0.3);
  EXPECT_EQ(spec_.optimizer.beta1, 0.9);
  EXPECT_EQ(spec_.optimizer.beta2, 0.999);
  EXPECT_TRUE(spec_.optimizer.weight_decay_norms);
}

TEST_F(OptimizerArguments, AnotherOptimizerThanDeepSpeedsIsAMismatch) {
  const std::pair<std::string, OptimizerKind> types[] = {{"AdamW", OptimizerKind::kAdamW},
                                                         {"Adam", OptimizerKind::kAdamW},
                                                         {"Lion", OptimizerKind::kLion},
                                                         {"Muon", OptimizerKind::kMuon}};
  for (const auto& [type, kind] : types) {
    give("deepspeed", deepspeed_with(R"({"type": ")" + type + R"(", "params": {"lr": 1e-4}})"));
    for (const auto& [optim, form] : choice_words(OptimizerForm())) {
      SCOPED_TRACE(fmt::format("{}, --optim {}", type, optim));
      give("optim", std::string(optim));
      if (optimizer_kind(form) == kind) {
        resolve();
        EXPECT_EQ(spec_.optimizer.form, form);
        continue;
      }
      EXPECT_THAT(contradiction(),
                  HasSubstr("these values differ from the arguments of the run: optimizer.type " + type +
                            " and optim " + std::string(word_of(form)) + "; correct the file"));
    }
  }
  for (const char* optim : {"muon", "adafactor", "lion_32bit"}) {
    give("deepspeed", deepspeed_with(R"({"type": "AdamW", "params": {"lr": 1e-4}})"));
    give("optim", optim);
    EXPECT_THAT(contradiction(), HasSubstr(std::string("optimizer.type AdamW and optim ") + optim));
  }
}

TEST_F(OptimizerArguments, ALearningRateAgreesWithDeepSpeedsOptimizerAndScheduler) {
  const auto file = [](const std::string& optimizer, const std::string& scheduler) {
    return deepspeed_with(R"({"type": "AdamW", "params": {)" + optimizer +
                          R"(}}, "scheduler": {"type": "WarmupLR", "params": {)" + scheduler + "}}");
  };
  give("deepspeed", file(R"("lr": 1e-4)", R"("warmup_max_lr": 3e-4)"));
  resolve();
  EXPECT_EQ(spec_.schedule.learning_rate, 1e-4) << "the file may have two rates";
  give("learning_rate", "1e-4");
  EXPECT_THAT(contradiction(), HasSubstr("scheduler.params.warmup_max_lr 0.0003 and learning_rate 0.0001"));
  give("ds_compat", "0.16");
  give("deepspeed", file(R"("lr": 1e-4)", ""));
  resolve();
  give("deepspeed", file("", R"("warmup_max_lr": 1e-4)"));
  resolve();
}

TEST_F(OptimizerArguments, AWarmupBesideDeepSpeedsSchedulerIsCompared) {
  constexpr const char* kFile = R"({"train_micro_batch_size_per_gpu": "auto",
      "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 3}}})";
  const auto warnings = [&] {
    testing::internal::CaptureStderr();
    resolve();
    return testing::internal::GetCapturedStderr();
  };
  give("deepspeed", kFile);
  EXPECT_EQ(warnings(), "");
  EXPECT_EQ(spec_.schedule.warmup_steps, 3);
  spec_.schedule.warmup_steps = 0;
  give("warmup_ratio", "0.9");
  EXPECT_THAT(warnings(), HasSubstr("warmup_ratio 0.9 has no effect: the file has "
                                    "scheduler.params.warmup_num_steps 3"));
  spec_.schedule.warmup_steps = 0;
  give("warmup_ratio", "0.9");
  give("max_steps", "10");
  EXPECT_THAT(contradiction(), HasSubstr("scheduler.params.warmup_num_steps 3 and warmup_ratio 0.9"));
  spec_.schedule.warmup_steps = 0;
  give("warmup_ratio", "0.3");
  EXPECT_EQ(warnings(), "");
}

TEST_F(OptimizerArguments, NamesOfOtherProgramsMeanTheSameState) {
  const std::pair<const char*, const char*> names[] = {{"adamw", "adamw_torch"},
                                                       {"AdamW", "adamw_torch"},
                                                       {"adamw_32bit", "adamw_torch"},
                                                       {"paged_adamw", "adamw_torch"},
                                                       {"paged_adamw_32bit", "adamw_torch"},
                                                       {"PagedAdamW32bit", "adamw_torch"},
                                                       {"adamw_bnb_8bit", "adamw_8bit"},
                                                       {"AdamW8bit", "adamw_8bit"},
                                                       {"paged_adamw_8bit", "adamw_8bit"},
                                                       {"PagedAdamW8bit", "adamw_8bit"},
                                                       {"lion", "lion_32bit"},
                                                       {"Lion", "lion_32bit"},
                                                       {"paged_lion_32bit", "lion_32bit"},
                                                       {"Lion8bit", "lion_8bit"},
                                                       {"paged_lion_8bit", "lion_8bit"}};
  for (const auto& [name, form] : names) {
    SCOPED_TRACE(name);
    give("optim", name);
    EXPECT_EQ(word_of(spec_.optimizer.form), form);
  }
  EXPECT_EQ(spec_.optimizer.form, OptimizerForm::kLion8Bit);
  for (const char* name : {"paged_muon", "adafactor_8bit", "adam", "adamw_torch_4bit", ""})
    EXPECT_THAT(refusal("optim", name), HasSubstr("is not supported: use adamw_torch"));
}

TEST_F(OptimizerArguments, UpdatesInBackwardMergeTheMicroBatchesOfAStep) {
  give("optimizer_in_backward", "true");
  resolve();
  EXPECT_EQ(spec_.placement.merge_micro_batches, AutoChoice::kAlways);
  give("merge_micro_batches", "never");
  EXPECT_THAT(contradiction(), HasSubstr("contradicts merge_micro_batches never: a layer"));
}

TEST_F(OptimizerArguments, UpdatesInBackwardRefuseWhatWouldComeTooLate) {
  give("clip_mode", "layer");
  EXPECT_THAT(contradiction(), HasSubstr("clip_mode layer needs optimizer_in_backward"));
  give("optimizer_in_backward", "true");
  resolve();
  EXPECT_FALSE(spec_.computes_norm_first());
  spec_.sharding.stage.reset();  // one rank has stage 0
  try {
    spec_ = read_run_spec(table_, spec_, 2);
    ADD_FAILURE() << "two ranks are not refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("clip_mode layer needs one rank, found 2"));
  }
  give("zero_stage", "1");
  try {
    spec_ = read_run_spec(table_, spec_, 2);
    ADD_FAILURE() << "stage 1 is not refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("optimizer_in_backward on several ranks needs zero_stage 2 or 3"));
  }
  give("loss_spike_policy", "skip");
  EXPECT_THAT(contradiction(), HasSubstr("loss_spike_policy skip cannot keep optimizer_in_backward from"));
  give("loss_spike_policy", "warn");
  give("replay_check_steps", "10");
  EXPECT_THAT(contradiction(), HasSubstr("found clip_mode layer and max_grad_norm 1"));
  give("clip_mode", "global");
  resolve();
  EXPECT_TRUE(spec_.computes_norm_first());
  give("max_grad_norm", "0");
  EXPECT_THAT(contradiction(), HasSubstr("replay_check_steps cannot keep"));
}

}  // namespace
}  // namespace tessera
