#include "settings/deepspeed/deepspeed_settings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "expect_error.h"
#include "settings/derived.h"
#include "support/train/train_test_support.h"
#include "test_paths.h"

namespace tessera {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

using Settings = std::vector<std::pair<std::string, std::string>>;

// Arguments with some flags given.
class Given {
 public:
  explicit Given(const Settings& flags, const RunSpec& start = {}) : spec(start) {
    declare_training_flags(&table_, &spec);
    for (const auto& [name, value] : flags) table_.set(*table_.find(name), {value}, "command line");
  }
  Given(const Given&) = delete;
  Given& operator=(const Given&) = delete;

  RunSettings& resolve(int64_t world_size = 1) {
    spec = read_run_spec(table_, spec, world_size);
    return spec;
  }

  RunSettings spec;

 private:
  FlagTable table_;
};

RunSettings resolved(const Settings& flags, int64_t world_size) { return Given(flags).resolve(world_size); }

RunSettings merged(const std::string& json, Settings flags = {}, int64_t world_size = 1) {
  flags.emplace_back("deepspeed", json);
  return Given(flags).resolve(world_size);
}

std::string refusal(const std::string& json, Settings flags = {}, int64_t world_size = 1) {
  const Error error = error_of([&] { merged(json, flags, world_size); });
  EXPECT_EQ(error.code(), ExitCode::kBadConfig) << json;
  return error.what();
}

constexpr const char* kMicro = R"({"train_micro_batch_size_per_gpu": "auto")";

std::string with(const std::string& members) { return kMicro + (", " + members + "}"); }

TEST(DeepSpeedArguments, AutoTakesTheFlags) {
  const RunSpec spec = merged(
      R"({"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto",
          "gradient_accumulation_steps": "auto", "gradient_clipping": "auto", "bf16": {"enabled": "auto"},
          "optimizer": {"type": "AdamW", "params": {"lr": "auto", "betas": "auto", "eps": "auto",
                                                    "weight_decay": "auto"}}})",
      {{"per_device_train_batch_size", "3"},
       {"gradient_accumulation_steps", "5"},
       {"max_grad_norm", "0.3"},
       {"bf16", "false"},
       {"learning_rate", "2e-4"},
       {"adam_beta1", "0.8"},
       {"adam_beta2", "0.95"},
       {"adam_epsilon", "1e-6"},
       {"weight_decay", "0.2"}});
  EXPECT_EQ(spec.batch.rows_per_device, 3);
  EXPECT_EQ(spec.batch.accumulation_steps, 5);
  EXPECT_EQ(spec.clipping.max_norm, 0.3);
  EXPECT_EQ(spec.precision.dtype, DType::kF32);
  EXPECT_EQ(spec.schedule.learning_rate, 2e-4);
  EXPECT_EQ(spec.optimizer.beta1, 0.8);
  EXPECT_EQ(spec.optimizer.beta2, 0.95);
  EXPECT_EQ(spec.optimizer.epsilon, 1e-6);
  EXPECT_EQ(spec.optimizer.weight_decay, 0.2);
  EXPECT_TRUE(spec.optimizer.weight_decay_norms);
}

TEST(DeepSpeedArguments, ValuesDecideWhatNoFlagGives) {
  const RunSpec spec = merged(
      R"({"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4, "gradient_clipping": 0.5,
          "bf16": {"enabled": false},
          "optimizer": {"type": "Adam", "params": {"lr": 3e-4, "betas": [0.8, 0.9], "eps": 1e-6,
                                                   "weight_decay": 0.1}}})");
  EXPECT_EQ(spec.batch.rows_per_device, 2);
  EXPECT_EQ(spec.batch.accumulation_steps, 4);
  EXPECT_EQ(spec.clipping.max_norm, 0.5);
  EXPECT_EQ(spec.precision.dtype, DType::kF32);
  EXPECT_EQ(spec.precision.bf16, false);
  EXPECT_EQ(spec.schedule.learning_rate, 3e-4);
  EXPECT_EQ(spec.optimizer.beta1, 0.8);
  EXPECT_EQ(spec.optimizer.beta2, 0.9);
  EXPECT_EQ(spec.optimizer.epsilon, 1e-6);
  EXPECT_EQ(spec.optimizer.weight_decay, 0.1);
}

TEST(DeepSpeedArguments, AbsentOptimizerSettingsAreDeepSpeeds) {
  const RunSpec spec =
      merged(with(R"("optimizer": {"type": "AdamW"})"), {{"learning_rate", "7e-5"}, {"weight_decay", "0.3"}});
  EXPECT_EQ(spec.schedule.learning_rate, 1e-3);
  EXPECT_EQ(spec.optimizer.weight_decay, 0);
  EXPECT_EQ(
      merged(with(R"("optimizer": {"type": "Adam", "params": {"torch_adam": true}})")).optimizer.weight_decay,
      0.01);
  EXPECT_FALSE(merged(kMicro + std::string("}")).optimizer.weight_decay_norms);
  EXPECT_EQ(merged(kMicro + std::string("}"), {{"learning_rate", "7e-5"}}).schedule.learning_rate, 7e-5);
}

TEST(DeepSpeedArguments, StairCountsFollowTheRelease) {
  const std::string json =
      with(R"("scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-5, "cycle_max_lr": 1e-4,
                                                           "cycle_first_stair_count": 4}})");
  for (const char* release : {"0.19", "0.19.4", "0.19.8"}) {
    EXPECT_TRUE(
        Json::parse(merged(json, {{"ds_compat", release}}).sources.json_texts.at("lr_scheduler_kwargs"))
            .contains("cycle_first_stair_count"))
        << release;
  }
  for (const char* release : {"0.16", "0.19.0", "0.19.3"}) {
    EXPECT_FALSE(
        Json::parse(merged(json, {{"ds_compat", release}}).sources.json_texts.at("lr_scheduler_kwargs"))
            .contains("cycle_first_stair_count"))
        << release;
  }
  EXPECT_EQ(merged(json, {{"ds_compat", "0.19.2"}}).clipping.max_norm, 0);
  EXPECT_EQ(merged(json, {{"ds_compat", "0.19.3"}}).clipping.max_norm, 1);
}

// DeepSpeed 0.19.8 clips the gradients of its stage 0, and what Muon has made of them in its other stages.
TEST(DeepSpeedArguments, MuonWithClippingIsRefusedWhereDeepSpeedClipsItsUpdates) {
  const std::string muon = R"("optimizer": {"type": "Muon", "params": {"lr": 0.02}})";
  for (const char* stage : {"1", "2", "3"}) {
    const std::string sharded = fmt::format(R"({}, "zero_optimization": {{"stage": {}}})", muon, stage);
    EXPECT_THAT(refusal(with(sharded)), HasSubstr("--deepspeed: gradient_clipping: 1 with Muon")) << stage;
    EXPECT_EQ(merged(with(sharded + R"(, "gradient_clipping": 0)")).clipping.max_norm, 0);
  }
  EXPECT_EQ(merged(with(muon)).clipping.max_norm, 1);
}

TEST(DeepSpeedArguments, AGradientNormThatIsNotComputedCannotBeClipped) {
  const std::string zero = R"("zero_optimization": {"stage": 2, "compute_grad_norm": false})";
  EXPECT_THAT(refusal(with(zero)), HasSubstr("compute_grad_norm: false needs gradient_clipping 0"));
  EXPECT_EQ(merged(with(zero + R"(, "gradient_clipping": 0)")).clipping.max_norm, 0);
}

TEST(DeepSpeedArguments, DefaultsFollowTheRelease) {
  const std::string json = with(R"("scheduler": {"type": "WarmupLR"})");
  const RunSpec now = merged(json);
  EXPECT_EQ(now.clipping.max_norm, 1);
  EXPECT_FALSE(Json::parse(now.sources.json_texts.at("lr_scheduler_kwargs")).contains("warmup_max_lr"));
  const RunSpec old = merged(json, {{"ds_compat", "0.16"}});
  EXPECT_EQ(old.clipping.max_norm, 0);
  EXPECT_EQ(Json::parse(old.sources.json_texts.at("lr_scheduler_kwargs")).at("warmup_max_lr"), 1e-3);
  EXPECT_EQ(old.schedule.learning_rate, 1e-3);
}

TEST(DeepSpeedArguments, BatchSizesFollowFromEachOther) {
  const auto batch = [](const std::string& json, const Settings& flags = {}) {
    const RunSpec spec = merged(json, flags);
    return std::pair(spec.batch.rows_per_device, spec.batch.accumulation_steps);
  };
  EXPECT_EQ(batch(R"({"train_batch_size": 12, "train_micro_batch_size_per_gpu": 3})"), std::pair(3L, 4L));
  EXPECT_EQ(batch(R"({"train_batch_size": 12, "gradient_accumulation_steps": 3})"), std::pair(4L, 3L));
  EXPECT_EQ(batch(R"({"train_batch_size": 12})"), std::pair(12L, 1L));
  EXPECT_EQ(batch(R"({"train_micro_batch_size_per_gpu": 5})"), std::pair(5L, 1L));
  EXPECT_EQ(batch(R"({"train_batch_size": 12})", {{"per_device_train_batch_size", "2"}}), std::pair(2L, 6L));
  EXPECT_EQ(batch("{}", {{"per_device_train_batch_size", "2"}, {"gradient_accumulation_steps", "3"}}),
            std::pair(2L, 3L));
  EXPECT_EQ(batch(R"({"train_batch_size": "auto"})"), std::pair(8L, 1L));
}

TEST(DeepSpeedArguments, BatchSizesMustFit) {
  EXPECT_THAT(refusal(R"({"gradient_accumulation_steps": 4})"), HasSubstr("DeepSpeed needs one of them"));
  EXPECT_THAT(
      refusal(
          R"({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1})"),
      HasSubstr("train_batch_size 16 and micro batch 4 x accumulation 1 x world size 1"));
  EXPECT_THAT(refusal(R"({"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4})"),
              HasSubstr("micro batch 4 x accumulation 2"));
  EXPECT_THAT(refusal(R"({"train_batch_size": 1, "train_micro_batch_size_per_gpu": 4000000000,
                          "gradient_accumulation_steps": 4000000000})"),
              HasSubstr("world size 1"));
}

TEST(DeepSpeedArguments, BatchSizesAreOfAllRanks) {
  const auto batch = [](const std::string& json, int64_t world_size) {
    const RunSpec spec = merged(json, {}, world_size);
    return std::pair(spec.batch.rows_per_device, spec.batch.accumulation_steps);
  };
  EXPECT_EQ(batch(R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3})", 4), std::pair(3L, 2L));
  EXPECT_EQ(batch(R"({"train_batch_size": 24, "gradient_accumulation_steps": 3})", 4), std::pair(2L, 3L));
  EXPECT_EQ(batch(R"({"train_batch_size": 24})", 4), std::pair(6L, 1L));
  EXPECT_EQ(batch(R"({"train_micro_batch_size_per_gpu": 5})", 4), std::pair(5L, 1L));
  EXPECT_EQ(batch(R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3,
                      "gradient_accumulation_steps": 2})",
                  4),
            std::pair(3L, 2L));
  EXPECT_THAT(refusal(R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3})", {}, 5),
              HasSubstr("train_batch_size 24 and micro batch 3 x accumulation 1 x world size 5"));
  EXPECT_THAT(refusal(R"({"train_batch_size": 3})", {}, 4),
              HasSubstr("micro batch 1 x accumulation 1 x world size 4"));
}

TEST(DeepSpeedArguments, GlobalBatchDecidesAnAccumulationThatIsLeftOpen) {
  const auto accumulation = [](const std::string& json, int64_t world_size) {
    return merged(json, {{"global_batch_size", "24"}}, world_size).batch.accumulation_steps;
  };
  EXPECT_EQ(accumulation("{\"train_micro_batch_size_per_gpu\": 3}", 2), 4);
  EXPECT_EQ(accumulation(with(R"("gradient_accumulation_steps": "auto")"), 2), 2);
  EXPECT_EQ(accumulation(R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 3})", 4), 2);
  EXPECT_EQ(accumulation(R"({"train_batch_size": 24})", 4), 1);
  EXPECT_EQ(accumulation(R"({"train_batch_size": "auto"})", 5), 1);
}

TEST(DeepSpeedArguments, GlobalBatchMustAgreeWithTheFile) {
  const Settings flags = {{"global_batch_size", "24"}};
  EXPECT_THAT(refusal(R"({"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4})", flags, 2),
              HasSubstr("train_batch_size 16 and global_batch_size 24"));
  EXPECT_THAT(refusal(R"({"train_batch_size": 24, "train_micro_batch_size_per_gpu": 5})", flags, 2),
              HasSubstr("train_batch_size 24 and micro batch 5 x accumulation 3 x world size 2"));
  EXPECT_THAT(
      refusal(R"({"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 1})", flags, 2),
      HasSubstr("gradient_accumulation_steps 1 contradicts global_batch_size 24, which needs 3 on 2 ranks"));
}

TEST(DeepSpeedArguments, ZeroSettingsComeFromFileFlagOrDefault) {
  EXPECT_EQ(*resolved({}, 1).sharding.stage, 0);
  EXPECT_EQ(*resolved({}, 2).sharding.stage, 2);
  EXPECT_EQ(*resolved({{"zero_stage", "3"}}, 2).sharding.stage, 3);
  EXPECT_EQ(*merged(with("\"steps_per_print\": 1"), {}, 2).sharding.stage, 0);
  EXPECT_EQ(*merged(with("\"steps_per_print\": 1"), {{"zero_stage", "1"}}, 2).sharding.stage, 1);
  const std::string stage_3 = with(R"("zero_optimization": {"stage": 3})");
  EXPECT_EQ(*merged(stage_3, {}, 2).sharding.stage, 3);
  EXPECT_EQ(*merged(stage_3, {{"zero_stage", "3"}}, 2).sharding.stage, 3);
  EXPECT_THAT(refusal(stage_3, {{"zero_stage", "2"}}, 2),
              HasSubstr("zero_optimization.stage 3 and zero_stage 2"));
}

TEST(DeepSpeedArguments, SizesOfStage3AreGivenOrOfDeepSpeedOrOfHuggingFace) {
  const RunSpec none = resolved({}, 2);
  EXPECT_EQ(none.sharding.prefetch_elements(1000), 900'000);
  EXPECT_EQ(none.sharding.persistence_threshold_elements(1000), 10'000);
  EXPECT_EQ(none.sharding.max_live_parameters, 1'000'000'000);
  EXPECT_TRUE(none.sharding.overlap_comm);
  const RunSpec absent = merged(with(R"("zero_optimization": {"stage": 3})"), {}, 2);
  EXPECT_EQ(absent.sharding.prefetch_elements(1000), 50'000'000);
  EXPECT_EQ(absent.sharding.persistence_threshold_elements(1000), 100'000);
  const RunSpec automatic =
      merged(with(R"("zero_optimization": {"stage": 3, "stage3_prefetch_bucket_size": "auto",
          "stage3_param_persistence_threshold": "auto", "stage3_max_live_parameters": "auto"})"),
             {}, 2);
  EXPECT_EQ(automatic.sharding.prefetch_elements(1000), 900'000);
  EXPECT_EQ(automatic.sharding.persistence_threshold_elements(1000), 10'000);
  EXPECT_EQ(automatic.sharding.max_live_parameters, 1'000'000'000);
  const RunSpec given = merged(with(R"("zero_optimization": {"stage": 3, "prefetch_bucket_size": 1e3,
          "param_persistence_threshold": 20, "max_live_parameters": 3e6, "overlap_comm": false})"),
                               {}, 2);
  EXPECT_EQ(given.sharding.prefetch_elements(1000), 1000);
  EXPECT_EQ(given.sharding.persistence_threshold_elements(1000), 20);
  EXPECT_EQ(given.sharding.max_live_parameters, 3'000'000);
  EXPECT_FALSE(given.sharding.overlap_comm);
}

TEST(DeepSpeedArguments, TypesOfSumsAndOfCollectives) {
  const std::string bf16_sums = with(R"("data_types": {"grad_accum_dtype": "bf16"})");
  EXPECT_EQ(resolved({}, 2).sharding.accumulation_dtype(), DType::kF32);
  EXPECT_EQ(merged(bf16_sums, {}, 2).sharding.accumulation_dtype(), DType::kBF16);
  EXPECT_EQ(resolved({{"grad_accum_dtype", "bfloat16"}}, 2).sharding.accumulation_dtype(), DType::kBF16);
  EXPECT_EQ(resolved({{"grad_accum_dtype", "bfloat16"}}, 1).sharding.accumulation_dtype(), DType::kF32);
  EXPECT_THAT(refusal(bf16_sums, {{"grad_accum_dtype", "float32"}}, 2),
              HasSubstr("data_types.grad_accum_dtype bfloat16 and grad_accum_dtype float32"));
  EXPECT_THAT(refusal(bf16_sums, {{"dtype", "float32"}}, 2), HasSubstr("needs dtype bfloat16"));

  EXPECT_EQ(resolved({}, 2).sharding.communication_dtype, DType::kBF16);
  EXPECT_EQ(resolved({{"dtype", "float32"}}, 2).sharding.communication_dtype, DType::kF32);
  EXPECT_EQ(merged(with(R"("communication_data_type": "fp32")"), {}, 2).sharding.communication_dtype,
            DType::kF32);
  EXPECT_EQ(merged(with(R"("communication_data_type": "fp16")"), {}, 2).sharding.communication_dtype,
            DType::kBF16);
  EXPECT_THAT(refusal(with(R"("communication_data_type": "bf16")"), {{"dtype", "float32"}}, 2),
              HasSubstr("needs dtype bfloat16"));
  EXPECT_THAT(
      refusal(with(R"("communication_data_type": "int8")"), {}, 2),
      HasSubstr("communication_data_type: expected one of fp32, float32, bf16, bfp16, bfloat16, found"));
  EXPECT_THAT(refusal(with(R"("data_types": {"grad_accum_dtype": "fp16"})"), {}, 2),
              HasSubstr("data_types.grad_accum_dtype: expected one of fp32, float32, bf16, "));
}

TEST(DeepSpeedArguments, SummedGradientsAreRefusedWithSeveralRanks) {
  const std::string summed = with(R"("gradient_allreduce_op": "sum")");
  merged(summed);
  EXPECT_THAT(refusal(summed, {}, 2), HasSubstr("use mean"));
}

TEST(DeepSpeedArguments, PerLayerNeedsShardedWeights) {
  EXPECT_EQ(resolved({{"gather_schedule", "per_layer"}, {"zero_stage", "3"}}, 2).sharding.gather_schedule,
            GatherChoice::kPerLayer);
  EXPECT_TRUE(may_gather_per_layer(resolved({{"zero_stage", "3"}}, 2), 2));
  EXPECT_FALSE(may_gather_per_layer(resolved({{"zero_stage", "3"}}, 2), 1)) << "ranks of one node";
  EXPECT_FALSE(may_gather_per_layer(resolved({}, 2), 2)) << "what cannot be requested is not chosen either";
  EXPECT_FALSE(may_gather_per_layer(resolved({{"zero_stage", "3"}, {"pack_weights", "always"}}, 2), 2));
  expect_error(ExitCode::kBadConfig, {"gather_schedule per_layer needs zero_stage 3, found 2"}, [] {
    resolved({{"gather_schedule", "per_layer"}}, 2);
  });
}

TEST(DeepSpeedArguments, MismatchesAreReportedTogether) {
  const std::string message = refusal(
      R"({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 4, "gradient_clipping": 1.0,
          "train_batch_size": 4, "bf16": {"enabled": true},
          "optimizer": {"type": "AdamW", "params": {"lr": 1e-4, "betas": [0.9, 0.95], "eps": 1e-8,
                                                    "weight_decay": 0.1}},
          "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 1e-4, "warmup_num_steps": 10,
                                                            "total_num_steps": 100}}})",
      {{"per_device_train_batch_size", "8"},
       {"gradient_accumulation_steps", "2"},
       {"max_grad_norm", "0.5"},
       {"bf16", "false"},
       {"learning_rate", "2e-4"},
       {"adam_beta2", "0.999"},
       {"weight_decay", "0"},
       {"warmup_steps", "5"},
       {"max_steps", "50"}});
  for (const char* pair : {"train_micro_batch_size_per_gpu 1 and per_device_train_batch_size 8",
                           "gradient_accumulation_steps 4 and gradient_accumulation_steps 2",
                           "gradient_clipping 1 and max_grad_norm 0.5", "bf16.enabled true and bf16 false",
                           "optimizer.params.lr 0.0001 and learning_rate 0.0002",
                           "optimizer.params.betas 0.95 and adam_beta2 0.999",
                           "optimizer.params.weight_decay 0.1 and weight_decay 0",
                           "scheduler.params.warmup_num_steps 10 and warmup_steps 5",
                           "scheduler.params.total_num_steps 100 and max_steps 50"}) {
    EXPECT_THAT(message, HasSubstr(pair));
  }
  EXPECT_THAT(message, HasSubstr("write \"auto\" in the file"));
  EXPECT_THAT(message, testing::Not(HasSubstr("adam_beta1")));
}

TEST(DeepSpeedArguments, FlagsThatSayTheSameAreTaken) {
  const RunSpec spec =
      merged(R"({"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}, "gradient_clipping": 1.0})",
             {{"per_device_train_batch_size", "1"}, {"bf16", "true"}, {"max_grad_norm", "1"}});
  EXPECT_EQ(spec.batch.rows_per_device, 1);
  EXPECT_EQ(spec.precision.dtype, DType::kBF16);
}

TEST(DeepSpeedArguments, ValuesOutOfRangeNameTheKey) {
  EXPECT_EQ(refusal(with("\"gradient_clipping\": -1")),
            "--deepspeed: gradient_clipping: expected a finite number of at least 0, found -1");
  EXPECT_THAT(refusal(with(R"("optimizer": {"type": "Adam", "params": {"betas": [0.9, 1.0]}})")),
              HasSubstr("optimizer.params.betas: expected a finite number from 0 to below 1, found 1"));
}

TEST(DeepSpeedArguments, CoupledWeightDecayIsRefused) {
  const auto json = [](const char* decay) {
    return with(fmt::format(
        R"("optimizer": {{"type": "Adam", "params": {{"adam_w_mode": false, "weight_decay": {}}}}})", decay));
  };
  EXPECT_THAT(refusal(json("0.1")), HasSubstr("L2 regularization"));
  EXPECT_EQ(merged(json("0")).optimizer.weight_decay, 0);
}

TEST(DeepSpeedArguments, SchedulerDecidesRateAndWarmup) {
  const RunSpec spec = merged(with(
      R"("scheduler": {"type": "WarmupDecayLR", "params": {"warmup_max_lr": 3e-4, "warmup_num_steps": 20,
                                                             "total_num_steps": "auto"}})"));
  EXPECT_EQ(schedule_type(spec.schedule.form), ScheduleType::kWarmupDecayLR);
  EXPECT_EQ(spec.schedule.learning_rate, 3e-4);
  EXPECT_EQ(spec.schedule.num_warmup_steps(1000), 20);
  EXPECT_THAT(
      refusal(with(R"("scheduler": {"type": "WarmupDecayLR"})")),
      HasSubstr("--deepspeed: scheduler.params: lr_scheduler_type WarmupDecayLR needs total_num_steps"));
  EXPECT_THAT(refusal(with(R"("scheduler": {"type": "WarmupLR", "params": {"cycle_min_lr": 1}})")),
              HasSubstr("has no keyword 'cycle_min_lr'"));
}

TEST(DeepSpeedArguments, EverySampleFileMakesARun) {
  for (const fs::path& folder : deepspeed_folders()) {
    for (const auto& entry : fs::directory_iterator(folder)) {
      const RunSpec spec = merged(entry.path());
      EXPECT_EQ(spec.precision.dtype, DType::kBF16) << entry.path();
      EXPECT_EQ(spec.clipping.max_norm, 1) << entry.path();
    }
  }
  const RunSpec numbers = merged(data_folder() / "deepspeed-configs" / "all-numbers.json");
  EXPECT_EQ(numbers.batch.rows_per_device, 1);
  EXPECT_EQ(numbers.batch.accumulation_steps, 4);
  EXPECT_EQ(numbers.sharding.stage, 3);
  EXPECT_EQ(numbers.optimizer.beta2, 0.95);
  EXPECT_EQ(numbers.sharding.max_live_parameters, 1'000'000'000);
}

// The results of training with these flags on top of TinyRun's.
struct Outcome {
  std::vector<double> losses, grad_norms, learning_rates;
  std::map<std::string, std::vector<float>> weights;
};

Outcome train(const Settings& flags) {
  TinyRun tiny;
  tiny.spec.batch.rows_per_device = 8;
  tiny.spec.batch.accumulation_steps = 1;
  Given given(flags, tiny.spec);
  tiny.spec = given.resolve();
  const RecordingObserver run = tiny.train();
  Outcome outcome;
  for (const StepMetrics& step : run.steps) {
    outcome.losses.push_back(step.loss);
    outcome.grad_norms.push_back(step.grad_norm);
    outcome.learning_rates.push_back(step.learning_rate);
  }
  outcome.weights = read_tensors(tiny.output());
  return outcome;
}

void expect_same(const Outcome& found, const Outcome& expected) {
  EXPECT_EQ(found.losses, expected.losses);
  EXPECT_EQ(found.grad_norms, expected.grad_norms);
  EXPECT_EQ(found.learning_rates, expected.learning_rates);
  EXPECT_EQ(found.weights, expected.weights);
}

TEST(DeepSpeedRun, EqualsTheRunWithTheSameFlagsWhateverTheStage) {
  const Outcome flags = train({{"per_device_train_batch_size", "2"},
                               {"gradient_accumulation_steps", "2"},
                               {"max_grad_norm", "0.5"},
                               {"learning_rate", "3e-3"},
                               {"adam_beta1", "0.8"},
                               {"adam_beta2", "0.95"},
                               {"adam_epsilon", "1e-7"},
                               {"weight_decay", "0.1"},
                               {"weight_decay_norms", "true"},
                               {"lr_scheduler_type", "WarmupDecayLR"},
                               {"lr_scheduler_kwargs", R"({"warmup_max_lr": 3e-3, "warmup_num_steps": 3,
                                                           "total_num_steps": 6})"}});
  ASSERT_EQ(flags.losses.size(), 6u);
  for (int stage = 0; stage <= 3; ++stage) {
    SCOPED_TRACE(fmt::format("stage {}", stage));
    expect_same(train({{"deepspeed", fmt::format(R"({{
        "train_batch_size": 4, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2,
        "gradient_clipping": 0.5, "zero_optimization": {{"stage": {}}},
        "optimizer": {{"type": "AdamW", "params": {{"lr": 3e-3, "betas": [0.8, 0.95], "eps": 1e-7,
                                                    "weight_decay": 0.1}}}},
        "scheduler": {{"type": "WarmupDecayLR", "params": {{"warmup_max_lr": "auto", "warmup_num_steps": 3,
                                                            "total_num_steps": "auto"}}}}}})",
                                                 stage)}}),
                flags);
  }
}

TEST(DeepSpeedRun, DecayOfNormWeightsMatters) {
  const Settings decay = {{"weight_decay", "0.5"}};
  Settings all = decay;
  all.emplace_back("weight_decay_norms", "true");
  const Outcome without = train(decay), with_norms = train(all);
  const std::string norm = "model.norm.weight", projection = "model.layers.0.mlp.up_proj.weight";
  EXPECT_EQ(without.losses[0], with_norms.losses[0]);
  EXPECT_NE(without.weights.at(norm), with_norms.weights.at(norm));
  ASSERT_TRUE(with_norms.weights.contains(projection));
}

// Bias correction hides the betas in AdamW's first step; they show from the second on.
TEST(DeepSpeedRun, OneCycleMovesTheMomentum) {
  const auto one_cycle = [](const char* momentum) {
    return train({{"deepspeed", fmt::format(R"({{"train_micro_batch_size_per_gpu": 2,
        "scheduler": {{"type": "OneCycle", "params": {{"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2,
            "cycle_first_step_size": 3, "cycle_momentum": {}}}}}}})",
                                            momentum)}});
  };
  const Outcome moving = one_cycle("true"), fixed = one_cycle("false");
  ASSERT_EQ(moving.learning_rates, fixed.learning_rates);
  for (size_t step = 0; step < 4; ++step)
    EXPECT_NEAR(moving.learning_rates[step], 1e-3 + 3e-3 * static_cast<double>(step), 1e-15) << step;
  EXPECT_EQ(moving.losses[0], fixed.losses[0]);
  EXPECT_NE(moving.losses[3], fixed.losses[3]);
}

TEST(DeepSpeedRun, MomentumOutOfRangeIsFoundBeforeTheFirstStep) {
  expect_error(ExitCode::kBadConfig, {"decay_mom_rate 1 of lr_scheduler_type OneCycle", "at step 6"}, [] {
    train({{"deepspeed", R"({"train_micro_batch_size_per_gpu": 2,
        "scheduler": {"type": "OneCycle", "params": {"cycle_min_lr": 1e-3, "cycle_max_lr": 1e-2,
            "cycle_first_step_size": 2, "decay_step_size": 1, "decay_mom_rate": 1}}})"}});
  });
}

}  // namespace
}  // namespace tessera
