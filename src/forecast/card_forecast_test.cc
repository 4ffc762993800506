// Compares forecasts of `tessera plan` for runs on a card with the measured times of such runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/flags.h"
#include "devices/planned_card.h"
#include "forecast/forecast.h"
#include "model/families/families.h"
#include "settings/derived.h"

namespace tessera {
namespace {

using testing::HasSubstr;

// Sizes and times of docs/gpu.md, which were measured on an H200 with 16 layers and rows of 2,048 tokens.
class CardForecastTest : public testing::Test {
 protected:
  CardForecastTest() : config_(preset_config("llama3-8b")) {
    declare_training_flags(&table_, &spec_);
    set_layers(16);
    spec_.machine.device = DeviceKind::kCuda;
    spec_.batch.rows_per_device = 4;
    spec_.data.max_length = 2048;
    cluster_.node_memory_bytes = int64_t{256} << 30;
    cluster_.ops = planned_card_ops("NVIDIA H200", int64_t{139} << 30);
  }

  RunForecast forecast() {
    config_.lora = lora_config_of(spec_.lora, spec_.model);
    cluster_.rates = rates_of_card({989, 4800, /*has_wgmma=*/true},
                                   spec_.placement.optimizer_device == OffloadDevice::kCpu);
    return forecast_run(spec_, config_, cluster_, 16);
  }
  void set_layers(int64_t num_layers) {
    config_.num_hidden_layers = num_layers;
    config_.sliding_window.assign(static_cast<size_t>(num_layers), 0);
  }
  static double device_gib(const RunForecast& forecast) {
    return static_cast<double>(forecast.memory.device_bytes()) / (int64_t{1} << 30);
  }

  FlagTable table_;
  RunSettings spec_;
  ModelConfig config_;
  ClusterShape cluster_;
};

TEST_F(CardForecastTest, TakesWhatARunOnTheCardTook) {
  const RunForecast whole = forecast();
  EXPECT_EQ(whole.refusal, "");
  EXPECT_EQ(whole.memory.device, "NVIDIA H200");
  EXPECT_NEAR(device_gib(whole), 80.96, 0.06);
  EXPECT_NEAR(8192 / whole.time->step_s(), 21545, 0.1 * 21545) << "tokens per second";
  spec_.placement.optimizer_device = OffloadDevice::kCpu;
  spec_.batch.accumulation_steps = 8;
  const RunForecast offloaded = forecast();
  EXPECT_NEAR(device_gib(offloaded), 38.68, 0.06);
  EXPECT_NEAR(8 * 8192 / offloaded.time->step_s(), 18155, 0.15 * 18155);
  set_layers(32);
  spec_ = RunSpec();
  spec_.machine.device = DeviceKind::kCuda;
  spec_.batch.rows_per_device = 4;
  spec_.data.max_length = 2048;
  spec_.optimizer.form = OptimizerForm::kAdamWHalf;
  const RunForecast rounded = forecast();
  EXPECT_NEAR(device_gib(rounded), 114.56, 0.06);
  EXPECT_NEAR(8192 / rounded.time->step_s(), 11592, 0.1 * 11592);
}

TEST_F(CardForecastTest, RefusesWhatDoesNotFitTheCardOrTheHost) {
  cluster_.ops = planned_card_ops("NVIDIA L40S", int64_t{44} << 30);
  const std::string refusal = forecast().refusal;
  EXPECT_THAT(refusal, HasSubstr("more of NVIDIA L40S, 44.0 GiB are free"));
  EXPECT_THAT(refusal, HasSubstr("with offload_optimizer_device cpu it would take"));
  spec_.placement.optimizer_device = OffloadDevice::kCpu;
  EXPECT_EQ(forecast().refusal, "");
  cluster_.node_memory_bytes = int64_t{48} << 30;
  EXPECT_THAT(forecast().refusal, HasSubstr("the run does not fit in the host's memory"));
}

}  // namespace
}  // namespace tessera
