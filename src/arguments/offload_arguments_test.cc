#include <gmock/gmock.h>

#include "support/arguments_test_support.h"

namespace tessera {
namespace {

using testing::HasSubstr;

using OffloadArguments = ArgumentsTest;

TEST_F(OffloadArguments, WhatIsOnADiskHasAFolder) {
  give("offload_optimizer_device", "nvme");
  give("output_dir", "out");
  resolve();
  EXPECT_EQ(args_.offload_dir, "out/offload");
  give("offload_optimizer_nvme_path", "/local");
  resolve();
  EXPECT_EQ(args_.offload_dir, "/local");
  give("aio_block_size", "5000");
  EXPECT_EQ(contradiction(), "aio_block_size: expected a multiple of 4096, found 5000");
  give("aio_block_size", "8192");
  give("offload_optimizer_device", "cpu");
  testing::internal::CaptureStderr();
  resolve();
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("aio_block_size has no effect"));
  EXPECT_EQ(args_.offload_dir, "");
}

TEST_F(OffloadArguments, DeepSpeedsOffloadOfTheOptimizerIsTheSame) {
  give("deepspeed", R"({"train_micro_batch_size_per_gpu": "auto",
                        "zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": "/local"}},
                        "aio": {"block_size": 262144, "queue_depth": 8}})");
  resolve();
  EXPECT_EQ(args_.offload_optimizer_device, "nvme");
  EXPECT_EQ(args_.offload_dir, "/local");
  EXPECT_EQ(args_.aio_block_size, 262144);
  EXPECT_EQ(args_.aio_queue_depth, 8);
  give("offload_optimizer_device", "none");
  EXPECT_THAT(contradiction(),
              HasSubstr("zero_optimization.offload_optimizer.device nvme and offload_optimizer_device none"));
}

}  // namespace
}  // namespace tessera
