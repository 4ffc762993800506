#include <gmock/gmock.h>

#include <utility>
#include <vector>

#include "support/settings/arguments_test_support.h"

namespace tessera {
namespace {

using testing::HasSubstr;

using DeviceArguments = ArgumentsTest;

TEST_F(DeviceArguments, ACardTakesWhatItHas) {
  resolve();
  EXPECT_EQ(spec_.machine.device, DeviceKind::kCpu);
  give("device", "cuda");
  resolve();
  give("finetuning_type", "lora");
  resolve();
  give("finetuning_type", "full");
  give("optim", "adamw_8bit");
  EXPECT_EQ(contradiction(),
            "optim adamw_8bit is not available with device cuda: use adamw_torch, adamw_bf16 with bfloat16 "
            "weights, "
            "or offload_optimizer_device cpu, with which the processor updates the weights");
  give("optim", "adamw_bf16");
  resolve();
  give("optim", "adamw_8bit");
  give("offload_optimizer_device", "cpu");
  resolve();
  give("offload_optimizer_device", "none");
  give("offload_param_device", "cpu");
  resolve();
  give("offload_optimizer_device", "nvme");
  resolve();
}

TEST_F(DeviceArguments, ACardRoundsTheMomentsOfBf16WeightsOnly) {
  give("device", "cuda");
  give("dtype", "float32");
  resolve();
  give("optim", "adamw_bf16");
  EXPECT_THAT(contradiction(), HasSubstr("optim adamw_bf16 is not available with device cuda"));
}

TEST_F(DeviceArguments, SomeSettingsNeedTheParametersOnTheHost) {
  give("device", "cuda");
  give("optimizer_in_backward", "true");
  EXPECT_EQ(
      contradiction(),
      "optimizer_in_backward is not available with device cuda: use offload_param_device cpu, with which "
      "the host keeps weights, too");
  give("offload_param_device", "cpu");
  resolve();
}

TEST_F(DeviceArguments, WhatACardLacksIsNamed) {
  give("device", "cuda");
  const std::vector<std::pair<std::string, std::vector<std::string>>> settings = {
      {"fit", {"true", "false"}},
      {"offload_optimizer_device", {"nvme", "none"}},
      {"peer_snapshot_steps", {"1", "0"}},
  };
  for (const auto& [name, values] : settings) {
    give(name, values[0]);
    EXPECT_THAT(contradiction(), HasSubstr("is not available with device cuda")) << name;
    give(name, values[1]);
  }
  resolve();
}

}  // namespace
}  // namespace tessera
