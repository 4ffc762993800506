// For tests of forecasts: a small model on four nodes.
#pragma once

#include <gtest/gtest.h>

#include "base/flags.h"
#include "forecast/forecast.h"
#include "model/families/families.h"

namespace tessera {

class ForecastTest : public testing::Test {
 protected:
  ForecastTest() : config_(preset_config("160m")) {
    config_.vocab_size = 32000;
    declare_training_flags(&table_, &spec_);
    spec_.batch.rows_per_device = 2;
    spec_.batch.accumulation_steps = 4;
    spec_.placement.merge_micro_batches = AutoChoice::kNever;
    spec_.data.max_length = 512;
    spec_.sharding.stage = 3;
    cluster_.num_nodes = 4;
    cluster_.node_memory_bytes = int64_t{64} << 30;
    cluster_.rates = rates_of_peak(2, 1, 0.5);
  }

  RunForecast forecast() { return forecast_run(spec_, config_, cluster_, 1); }

  FlagTable table_;
  RunSettings spec_;
  ModelConfig config_;
  ClusterShape cluster_;
};

}  // namespace tessera
