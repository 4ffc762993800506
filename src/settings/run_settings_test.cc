#include "settings/run_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "expect_error.h"
#include "settings/derived.h"
#include "support/settings/arguments_test_support.h"

namespace tessera {
namespace {

using testing::HasSubstr;

TEST_F(ArgumentsTest, RestartedRanksResumeUnlessTheFlagIsGiven) {
  const auto variable = [](const std::string& value) -> Environment {
    return [value](const std::string& name) {
      return name == "TESSERA_RESUME" ? std::optional<std::string>(value) : std::nullopt;
    };
  };
  read_environment(variable(""), &table_, &spec_);
  EXPECT_EQ(resume_text(spec_.resume), "");
  read_environment(variable("auto"), &table_, &spec_);
  EXPECT_EQ(resume_text(spec_.resume), "auto");
  EXPECT_TRUE(spec_.resume.by_agent);
  give("resume_from_checkpoint", "false");
  read_environment(variable("auto"), &table_, &spec_);
  EXPECT_EQ(resume_text(spec_.resume), "");
  EXPECT_THROW(read_environment(variable("yes"), &table_, &spec_), Error);
}

TEST_F(ArgumentsTest, WhatTheUserAsksForIsNotTheAgents) {
  give("resume_from_checkpoint", "auto");
  read_environment(
      [](const std::string& name) {
        return name == "TESSERA_RESUME" ? std::optional<std::string>("auto") : std::nullopt;
      },
      &table_, &spec_);
  EXPECT_EQ(resume_text(spec_.resume), "auto");
  EXPECT_FALSE(spec_.resume.by_agent);
}

// The settings of a run on one rank are written with stage 0.
TEST_F(ArgumentsTest, StageZeroIsWhatOneRankHas) {
  const auto warnings = [&](const char* stage) {
    give("zero_stage", stage);
    testing::internal::CaptureStderr();
    resolve();
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_THAT(warnings("2"), HasSubstr("zero_stage has no effect on one rank"));
  EXPECT_THAT(warnings("0"), testing::Not(HasSubstr("zero_stage")));
}

TEST_F(ArgumentsTest, LaunchIsKnownByItsVariables) {
  std::map<std::string, std::string> variables;
  const Environment environment = [&](const std::string& name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::nullopt : std::optional(found->second);
  };
  read_environment(environment, &table_, &spec_);
  EXPECT_EQ(spec_.launch.id, "");
  EXPECT_FALSE(spec_.launch.is_restart);
  variables = {{"TESSERA_LAUNCH_ID", "12ab"}, {"TESSERA_RESUME", "auto"}};
  read_environment(environment, &table_, &spec_);
  EXPECT_EQ(spec_.launch.id, "12ab");
  EXPECT_TRUE(spec_.launch.is_restart);
}

TEST_F(ArgumentsTest, TheAgentsGraceCountsWhereItIsShorter) {
  std::string grace;
  const auto read = [&] {
    read_environment(
        [&](const std::string& name) {
          return name == "TESSERA_TERMINATION_GRACE_S" ? std::optional(grace) : std::nullopt;
        },
        &table_, &spec_);
  };
  const auto warnings_of_resolving = [&] {
    testing::internal::CaptureStderr();
    resolve();
    return testing::internal::GetCapturedStderr();
  };
  read();
  EXPECT_EQ(spec_.time_to_end_s(), 30);
  grace = "12.5";
  read();
  EXPECT_EQ(spec_.time_to_end_s(), 12.5);
  EXPECT_EQ(warnings_of_resolving(), "") << "no more was requested";
  give("grace_period_s", "90");
  EXPECT_EQ(spec_.time_to_end_s(), 12.5);
  EXPECT_THAT(warnings_of_resolving(), HasSubstr("kills its ranks 12.5 s after a signal"));
  grace = "120";
  read();
  EXPECT_EQ(spec_.time_to_end_s(), 90);
  EXPECT_EQ(warnings_of_resolving(), "");
  for (const char* bad : {"soon", "-1", "nan"}) {
    grace = bad;
    EXPECT_THROW(read(), Error) << bad;
  }
}

TEST_F(ArgumentsTest, AccumulationFollowsFromTheGlobalBatch) {
  give("global_batch_size", "100");
  give("per_device_train_batch_size", "8");
  resolve();
  EXPECT_EQ(spec_.batch.accumulation_steps, 13);
  spec_ = read_run_spec(table_, spec_, 4);
  EXPECT_EQ(spec_.batch.accumulation_steps, 4);
  EXPECT_EQ(global_batch_rows(spec_.batch_options(4)), 100);
  give("gradient_accumulation_steps", "4");
  EXPECT_EQ(contradiction(),
            "gradient_accumulation_steps 4 contradicts global_batch_size 100, which needs 13 on one rank "
            "with per_device_train_batch_size 8: leave it out to derive it");
  give("gradient_accumulation_steps", "13");
  resolve();
  EXPECT_EQ(spec_.batch.accumulation_steps, 13);
  EXPECT_THAT(refusal("global_batch_size", "0"), HasSubstr("at least 1"));
}

TEST_F(ArgumentsTest, EveryFlagIsExplained) {
  for (const Flag& flag : table_.flags()) {
    const std::string& text = flag.status == FlagStatus::kHonoured ? flag.help : flag.note;
    EXPECT_GT(text.size(), 12u) << flag.name;
    if (flag.status == FlagStatus::kHonoured) {
      EXPECT_TRUE(text.ends_with('.')) << flag.name << ": " << text;
      EXPECT_TRUE(std::isupper(static_cast<unsigned char>(text[0]))) << flag.name << ": " << text;
    } else {
      EXPECT_FALSE(text.ends_with('.')) << flag.name << ": " << text;  // it ends a message
    }
  }
}

TEST_F(ArgumentsTest, AliasesReachTheirFlag) {
  give("model_name_or_path", "m");
  give("train-file", "d.jsonl");
  give("block_size", "128");
  give("per_gpu_train_batch_size", "3");
  EXPECT_EQ(spec_.model.folder, "m");
  EXPECT_EQ(spec_.data.dataset, std::vector<std::string>{"d.jsonl"});
  EXPECT_EQ(spec_.data.max_length, 128);
  EXPECT_EQ(spec_.batch.rows_per_device, 3);
}

TEST_F(ArgumentsTest, OutputFolderMayBeBelowHome) {
  ASSERT_EQ(::setenv("HOME", "/home/user", /*overwrite=*/0), 0);
  give("output_dir", "~/runs/a");
  EXPECT_EQ(spec_.output_dir, std::string(std::getenv("HOME")) + "/runs/a");
  for (const char* plain : {"~runs", "runs/~", "/~/runs"}) {
    give("output_dir", plain);
    EXPECT_EQ(spec_.output_dir, plain);
  }
  EXPECT_EQ(refusal("output_dir", ""), "command line: --output_dir: expected a folder, found ''");
}

TEST_F(ArgumentsTest, ValuesThatMakeNoSenseAreRefused) {
  EXPECT_EQ(refusal("learning_rate", "-1e-3"),
            "command line: --learning_rate: expected a finite number of at least 0, found -0.001");
  EXPECT_THAT(refusal("learning_rate", "nan"), HasSubstr("found nan"));
  EXPECT_THAT(refusal("learning_rate", "inf"), HasSubstr("found inf"));
  EXPECT_THAT(refusal("adam_beta1", "1"), HasSubstr("from 0 to below 1, found 1"));
  EXPECT_THAT(refusal("adam_beta2", "-0.1"), HasSubstr("from 0 to below 1"));
  EXPECT_THAT(refusal("adam_epsilon", "0"), HasSubstr("at least 1.2e-38"));
  EXPECT_THAT(refusal("weight_decay", "-1"), HasSubstr("at least 0"));
  EXPECT_THAT(refusal("max_grad_norm", "-1"), HasSubstr("at least 0"));
  EXPECT_THAT(refusal("label_smoothing_factor", "1"), HasSubstr("below 1"));
  EXPECT_THAT(refusal("per_device_train_batch_size", "0"), HasSubstr("at least 1, found 0"));
  EXPECT_THAT(refusal("per_device_eval_batch_size", "-4"), HasSubstr("at least 1, found -4"));
  EXPECT_THAT(refusal("gradient_accumulation_steps", "0"), HasSubstr("at least 1"));
  EXPECT_THAT(refusal("num_train_epochs", "0"), HasSubstr("above 0"));
  EXPECT_THAT(refusal("max_steps", "0"), HasSubstr("at least 1, or -1"));
  EXPECT_THAT(refusal("max_steps", "1.5"), HasSubstr("whole number"));
  EXPECT_THAT(refusal("max_length", "1"), HasSubstr("at least 2"));
  EXPECT_THAT(refusal("seed", "-1"), HasSubstr("at least 0"));
  EXPECT_THAT(refusal("save_total_limit", "0"), HasSubstr("at least 1"));
  EXPECT_THAT(refusal("warmup_ratio", "1.5"), HasSubstr("from 0 to 1"));
}

TEST_F(ArgumentsTest, IntervalsAreWholeStepsOrShares) {
  for (const char* name : {"logging_steps", "save_steps", "eval_steps"}) {
    give(name, "0.1");
    give(name, "7");
    for (const char* bad : {"0", "1.5", "-2", "nan", "1e300"})
      EXPECT_THAT(refusal(name, bad), HasSubstr("whole number of steps"));
  }
  EXPECT_THAT(refusal("warmup_steps", "2.5"), HasSubstr("whole number of steps"));
  EXPECT_THAT(refusal("warmup_steps", "-1"), HasSubstr("whole number of steps"));
}

TEST_F(ArgumentsTest, UnknownChoicesNameTheKnownOnes) {
  EXPECT_THAT(refusal("lr_scheduler_type", "cosin"), HasSubstr("expected one of linear, cosine,"));
  EXPECT_EQ(refusal("optim", "sgd"),
            "command line: --optim sgd is not supported: use adamw_torch, adamw_bf16 (half the memory "
            "for moments), adamw_8bit (a quarter), lion_32bit, lion_8bit, muon or adafactor");
  EXPECT_THAT(refusal("metric_for_best_model", "bleu"),
              HasSubstr("expected one of loss, loss_per_token, perplexity,"));
  EXPECT_THAT(refusal("dtype", "float16"), HasSubstr("use bfloat16"));
  EXPECT_THAT(refusal("save_dtype", "int8"),
              HasSubstr("expected one of bfloat16, float16, float32, found 'int8'"));
}

TEST_F(ArgumentsTest, WhatWouldChangeTheResultIsRefused) {
  EXPECT_THAT(refusal("ignore_data_skip", "true"), HasSubstr("rows after the checkpoint"));
  EXPECT_THAT(refusal("fp16", "true"), HasSubstr("bfloat16"));
  EXPECT_THAT(refusal("stage", "dpo"), HasSubstr("expected one of auto, pt, sft, mlm"));
  EXPECT_THAT(refusal("rl", "grpo"), HasSubstr("training is always on the next token"));
  give("fp16", "false");
  give("past_index", "-1");
}

TEST_F(ArgumentsTest, WhatIsHarmlessIsAccepted) {
  give("dataloader_num_workers", "4");
  give("wandb_project", "p");
  give("ddp_backend", "gloo");
  give("use_cpu", "true");
}

// Below the smallest normal number the C library reports a range error.
TEST_F(ArgumentsTest, SubnormalNumbersAreNumbers) {
  for (const char* name : {"learning_rate", "weight_decay", "max_grad_norm", "warmup_steps"}) {
    give(name, "1e-310");
    EXPECT_THAT(refusal(name, "1e-400"), HasSubstr("expected a number")) << name;
  }
  resolve();
  EXPECT_EQ(spec_.schedule.learning_rate, 1e-310);
  EXPECT_EQ(nlohmann::json::parse(training_arguments_json(spec_))["learning_rate"], 1e-310);
  EXPECT_THAT(refusal("adam_epsilon", "1e-310"), HasSubstr("of at least 1.2e-38"));
}

TEST_F(ArgumentsTest, ReportToIsAListOfSinks) {
  using Names = std::vector<std::string>;
  const auto reports = [&](const Names& values) {
    table_.set(*table_.find("report_to"), values, "command line");
    return table_.find("report_to")->get();
  };
  EXPECT_EQ(table_.find("report_to")->get(), Names{"jsonl"});
  EXPECT_EQ(reports({"mlflow", "tensorboard", "mlflow"}), (Names{"tensorboard", "mlflow"}));
  EXPECT_TRUE(spec_.reporting.reports_to(ReportTo::kMlflow));
  EXPECT_FALSE(spec_.reporting.reports_to(ReportTo::kCsv));
  EXPECT_EQ(reports({"csv,tensorboard", "mlflow"}), (Names{"tensorboard", "csv", "mlflow"}));
  EXPECT_EQ(reports({"all"}), (Names{"jsonl", "tensorboard", "csv", "mlflow", "prometheus", "dashboard"}));
  for (const Names& nothing : {Names{"none"}, Names{"None"}, Names{"null"}, Names{}})
    EXPECT_EQ(reports(nothing), Names{"none"});
  EXPECT_FALSE(spec_.reporting.reports_to(ReportTo::kJsonl));
}

TEST_F(ArgumentsTest, ReportToNamesWhatThereIs) {
  EXPECT_THAT(refusal("report_to", "csv,b"), HasSubstr("found 'b'"));
  EXPECT_EQ(refusal("report_to", "wandb"),
            "command line: --report_to wandb is not supported: choose from jsonl, tensorboard, csv, mlflow, "
            "prometheus, dashboard");
  EXPECT_EQ(refusal("report_to", "tensorbord"),
            "command line: --report_to: expected none, all or some of jsonl, tensorboard, csv, mlflow, "
            "prometheus, dashboard, found 'tensorbord'");
  expect_error(ExitCode::kUsage, {"expected none alone, found other names with it"}, [&] {
    table_.set(*table_.find("report_to"), {"csv", "none"}, "command line");
  });
}

TEST_F(ArgumentsTest, MonitorsOfDeepSpeedHaveFoldersOfTheirOwn) {
  const auto resolve_with = [&](const std::string& monitors) {
    give("deepspeed", R"({"train_micro_batch_size_per_gpu": "auto", )" + monitors + "}");
    resolve();
  };
  resolve_with(R"("tensorboard": {"enabled": true, "output_path": "logs", "job_name": "j"},
                  "csv_monitor": {"enabled": "true"}, "wandb": {"enabled": false})");
  EXPECT_EQ(spec_.reporting.monitor_tensorboard_dir, "logs/j");
  EXPECT_EQ(spec_.reporting.monitor_csv_dir, "DeepSpeedJobName");
  EXPECT_EQ(spec_.reporting.report_to, std::vector{ReportTo::kJsonl});
  resolve_with(R"("tensorboard": {"enabled": false, "output_path": "logs"}, "csv_monitor": {})");
  EXPECT_EQ(spec_.reporting.monitor_tensorboard_dir, std::nullopt);
  EXPECT_EQ(spec_.reporting.monitor_csv_dir, std::nullopt);
}

TEST_F(ArgumentsTest, Bf16IsAnotherSpellingOfDtype) {
  give("bf16", "false");
  resolve();
  EXPECT_EQ(spec_.precision.dtype, DType::kF32);
  EXPECT_EQ(spec_.precision.export_dtype(), DType::kF32);
}

TEST_F(ArgumentsTest, Bf16AndDtypeMustAgree) {
  give("bf16", "true");
  give("dtype", "bfloat16");
  resolve();
  give("dtype", "float32");
  EXPECT_EQ(contradiction(), "bf16 true contradicts dtype float32: give one of them");
}

TEST_F(ArgumentsTest, SaveDtypeFollowsDtype) {
  resolve();
  EXPECT_EQ(spec_.precision.export_dtype(), DType::kBF16);
  give("save_dtype", "float32");
  resolve();
  EXPECT_EQ(spec_.precision.export_dtype(), DType::kF32);
}

TEST_F(ArgumentsTest, FullEvaluationInBf16NeedsBf16) {
  give("bf16_full_eval", "true");
  resolve();
  give("dtype", "float32");
  spec_.precision.bf16.reset();
  EXPECT_THAT(contradiction(), HasSubstr("bf16_full_eval"));
}

TEST_F(ArgumentsTest, EvalStepsFallBackToLoggingSteps) {
  give("eval_strategy", "steps");
  give("eval_dataset", "v.txt");
  give("logging_steps", "25");
  resolve();
  EXPECT_EQ(spec_.evaluation.steps, 25);
}

TEST_F(ArgumentsTest, EvaluationNeedsADataset) {
  give("eval_strategy", "epoch");
  EXPECT_EQ(contradiction(), "eval_strategy epoch needs an eval_dataset, or validation_split_percentage");
}

TEST_F(ArgumentsTest, PlateauNeedsEvaluations) {
  give("lr_scheduler_type", "reduce_lr_on_plateau");
  EXPECT_THAT(contradiction(), HasSubstr("needs eval_strategy"));
}

TEST_F(ArgumentsTest, ScheduleKeywordsAreCheckedEarly) {
  give("lr_scheduler_type", "cosine");
  give("lr_scheduler_kwargs", R"({"num_cycle": 2})");
  EXPECT_THAT(contradiction(), HasSubstr("did you mean 'num_cycles'?"));
}

TEST_F(ArgumentsTest, ScheduleKeywordsAreReadInAnyOrderAndRecordedAsTheyWereGiven) {
  const std::string keywords = R"({"num_cycles":  2})";
  give("lr_scheduler_kwargs", keywords);
  give("lr_scheduler_type", "cosine");
  resolve();
  EXPECT_TRUE(spec_.schedule.form == ScheduleForm(CosineSchedule{.num_cycles = 2}));
  EXPECT_EQ(training_arguments(spec_).at("lr_scheduler_type"), "cosine");
  EXPECT_EQ(training_arguments(spec_).at("lr_scheduler_kwargs"), keywords);
}

TEST_F(ArgumentsTest, AScheduleThatNoFlagHasSetStays) {
  spec_.schedule.form = WarmupStableDecay{.num_decay_steps = 4};
  resolve();
  EXPECT_TRUE(spec_.schedule.form == ScheduleForm(WarmupStableDecay{.num_decay_steps = 4}));
  EXPECT_EQ(training_arguments(spec_).at("lr_scheduler_type"), "warmup_stable_decay");
}

TEST_F(ArgumentsTest, FabricsAreTcpAutoOrAProvider) {
  EXPECT_TRUE(spec_.network.fabric.is_tcp());
  for (const std::string name : {"auto", "efa", "tcp;ofi_rxm", "tcp"}) {
    give("fabric", name);
    EXPECT_EQ(spec_.network.fabric.is_tcp(), name == "tcp");
    EXPECT_EQ(training_arguments(spec_).at("fabric"), name);
  }
}

TEST_F(ArgumentsTest, ShuffleAndSamplingStrategyMustAgree) {
  give("train_sampling_strategy", "sequential");
  resolve();
  EXPECT_FALSE(spec_.data.shuffle);
  give("shuffle", "true");
  EXPECT_THAT(contradiction(), HasSubstr("shuffle true contradicts train_sampling_strategy sequential"));
}

TEST_F(ArgumentsTest, CrossDocumentAttentionNeedsPacking) {
  give("packing_cross_document_attention", "true");
  EXPECT_THAT(contradiction(), HasSubstr("needs packing true"));
  give("packing", "true");
  resolve();
  EXPECT_EQ(spec_.data.packing_mode(), Packing::kJoined);
}

TEST_F(ArgumentsTest, WarmupFollowsHuggingFace) {
  spec_.schedule.warmup_ratio = 0.1;
  EXPECT_EQ(spec_.schedule.num_warmup_steps(95), 10);  // ceil(9.5)
  spec_.schedule.warmup_steps = 3;
  EXPECT_EQ(spec_.schedule.num_warmup_steps(95), 3);  // steps win over the ratio
  spec_.schedule.warmup_steps = 0.02;
  EXPECT_EQ(spec_.schedule.num_warmup_steps(95), 2);  // ceil(1.9)
  spec_.schedule.warmup_steps = 0;
  spec_.schedule.warmup_ratio.reset();
  EXPECT_EQ(spec_.schedule.num_warmup_steps(95), 0);
}

TEST_F(ArgumentsTest, IntervalsBelowOneAreSharesRoundedUp) {
  EXPECT_EQ(interval_in_steps(0.1, 95), 10);
  EXPECT_EQ(interval_in_steps(0.001, 95), 1);
  EXPECT_EQ(interval_in_steps(1, 95), 1);
  EXPECT_EQ(interval_in_steps(500, 95), 500);
}

TEST_F(ArgumentsTest, JsonHasEveryHonouredSettingWithItsType) {
  give("dataset", "a.txt");
  give("learning_rate", "1e-3");
  spec_.model.hub_names = {{"model", "org/name"}};
  const auto json = nlohmann::json::parse(training_arguments_json(spec_));
  EXPECT_EQ(json["model"], "org/name");
  EXPECT_EQ(json.at("dataset"), nlohmann::json({"a.txt"}));
  EXPECT_EQ(json.at("learning_rate"), 1e-3);
  EXPECT_EQ(json.at("max_steps"), -1);
  EXPECT_EQ(json.at("packing"), false);
  EXPECT_TRUE(json.at("data_seed").is_null());
  EXPECT_FALSE(json.contains("fp16"));
}

}  // namespace
}  // namespace tessera
