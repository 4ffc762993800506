#include <gmock/gmock.h>

#include "formats/huggingface/model_config.h"
#include "settings/derived.h"
#include "support/settings/arguments_test_support.h"

namespace tessera {
namespace {

using testing::HasSubstr;

using OffloadArguments = ArgumentsTest;

TEST_F(OffloadArguments, WhatIsOnADiskHasAFolder) {
  give("offload_optimizer_device", "nvme");
  give("output_dir", "out");
  resolve();
  EXPECT_EQ(spec_.placement.offload_dir, "out/offload");
  give("offload_optimizer_nvme_path", "/local");
  resolve();
  EXPECT_EQ(spec_.placement.offload_dir, "/local");
  give("aio_block_size", "5000");
  EXPECT_EQ(contradiction(), "aio_block_size: expected a multiple of 4096, found 5000");
  give("aio_block_size", "8192");
  give("offload_optimizer_device", "cpu");
  testing::internal::CaptureStderr();
  resolve();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("aio_block_size has no effect"));
  EXPECT_EQ(spec_.placement.offload_dir, "");
}

// If both files had the same queue depth, chance would decide which of them gets most of the disk.
TEST_F(OffloadArguments, StateLeavesTheDiskToWhatTheNextLayerWaitsFor) {
  const auto state_depth = [&] {
    resolve();
    return zero_settings_of(spec_, preset_config("15m"), 1).state_folder->transfers.queue_depth;
  };
  give("output_dir", "out");
  give("offload_optimizer_device", "nvme");
  give("aio_queue_depth", "10");
  EXPECT_EQ(state_depth(), 10);
  give("gradient_checkpointing", "true");
  EXPECT_EQ(state_depth(), 10);
  give("gradient_checkpointing_mode", "offload");
  EXPECT_EQ(state_depth(), 3);
  give("gradient_checkpointing_mode", "full");
  give("optimizer_in_backward", "true");
  give("offload_param_device", "nvme");
  EXPECT_EQ(state_depth(), 3);
  EXPECT_EQ(zero_settings_of(spec_, preset_config("15m"), 1).weight_folder->transfers.queue_depth, 10);
}

TEST_F(OffloadArguments, InputsOfLayersGoToADiskOnlyWithCheckpointing) {
  give("output_dir", "out");
  give("gradient_checkpointing_mode", "offload");
  testing::internal::CaptureStderr();
  resolve();
  EXPECT_THAT(testing::internal::GetCapturedStderr(),
              HasSubstr("gradient_checkpointing_mode has no effect: gradient_checkpointing is false"));
  EXPECT_EQ(spec_.placement.offload_dir, "");
  give("gradient_checkpointing", "true");
  resolve();
  EXPECT_EQ(spec_.placement.offload_dir, "out/offload");
}

TEST_F(OffloadArguments, DeepSpeedsOffloadOfTheOptimizerIsTheSame) {
  give("deepspeed", R"({"train_micro_batch_size_per_gpu": "auto",
                        "zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/local"}},
                        "aio": {"block_size": 262144, "queue_depth": 8}})");
  resolve();
  EXPECT_EQ(spec_.placement.optimizer_device, OffloadDevice::kNvme);
  EXPECT_EQ(spec_.placement.offload_dir, "/local");
  EXPECT_EQ(spec_.placement.transfers.block_bytes, 262144);
  EXPECT_EQ(spec_.placement.transfers.queue_depth, 8);
  give("offload_optimizer_device", "none");
  EXPECT_THAT(contradiction(),
              HasSubstr("zero_optimization.offload_optimizer.device nvme and offload_optimizer_device none"));
}

TEST_F(OffloadArguments, DeepSpeedsOffloadOfWeightsUpdatesInBackward) {
  const auto file = [](const std::string& param, const std::string& optimizer = "{}") {
    return fmt::format(R"({{"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {{"stage": 3,
                           "offload_param": {}, "offload_optimizer": {}}}, "aio": {{"queue_depth": 8}}}})",
                       param, optimizer);
  };
  give("output_dir", "out");
  give("deepspeed", file(R"({"device": "nvme", "nvme_path": "/local", "max_in_cpu": 1e9})"));
  testing::internal::CaptureStderr();
  resolve();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("offload_param.max_in_cpu"));
  EXPECT_EQ(spec_.placement.param_device, OffloadDevice::kNvme);
  EXPECT_TRUE(spec_.placement.optimizer_in_backward);
  EXPECT_EQ(spec_.placement.offload_dir, "/local");
  EXPECT_EQ(spec_.placement.transfers.queue_depth, 8);
  try {
    spec_ = read_run_spec(table_, spec_, 2);
    ADD_FAILURE() << "two ranks are not refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("offload_param.device: nvme needs one rank, found 2: write cpu or none"));
  }
  give("deepspeed",
       file(R"({"device": "nvme", "nvme_path": "/a"})", R"({"device": "nvme", "nvme_path": "/b"})"));
  EXPECT_THAT(contradiction(),
              HasSubstr("offload_param.nvme_path: /a and that of offload_optimizer, /b, differ"));
  give("deepspeed", file(R"({"device": "nvme"})"));
  give("optimizer_in_backward", "false");
  EXPECT_THAT(contradiction(), HasSubstr("offload_param.device nvme and optimizer_in_backward false"));
}

TEST_F(OffloadArguments, WeightsBesideAdaptersNeedOneRankAndNoUpdateInBackward) {
  give("output_dir", "out");
  give("offload_param_device", "nvme");
  EXPECT_THAT(contradiction(), HasSubstr("offload_param_device nvme needs optimizer_in_backward"));
  give("finetuning_type", "lora");
  resolve();
  EXPECT_EQ(spec_.placement.offload_dir, "out/offload");
  EXPECT_FALSE(spec_.placement.optimizer_in_backward);
  try {
    spec_ = read_run_spec(table_, spec_, 2);
    ADD_FAILURE() << "two ranks are not refused";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("offload_param_device nvme needs one rank, found 2: the weights beside "
                          "adapters are in memory once per node"));
  }
  give("deepspeed", R"({"train_micro_batch_size_per_gpu": "auto",
                        "zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}})");
  resolve();
  EXPECT_FALSE(spec_.placement.optimizer_in_backward);
  EXPECT_EQ(spec_.placement.param_device, OffloadDevice::kNvme);
}

TEST_F(OffloadArguments, DeepSpeedsOffloadIntoMemoryLeavesAllAsItIs) {
  give("deepspeed", R"({"train_micro_batch_size_per_gpu": "auto",
                        "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}}})");
  spec_ = read_run_spec(table_, spec_, 2);
  EXPECT_EQ(spec_.placement.param_device, OffloadDevice::kNone);
  EXPECT_FALSE(spec_.placement.optimizer_in_backward);
}

}  // namespace
}  // namespace tessera
