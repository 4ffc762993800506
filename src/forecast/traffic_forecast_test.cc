// Forecasts of `tessera plan` for other traffic between nodes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "devices/planned_cpu.h"
#include "forecast/forecast.h"
#include "support/forecast_test_support.h"
#include "weights/parameter_pieces.h"

namespace tessera {
namespace {

using testing::HasSubstr;

TEST_F(ForecastTest, SaysWhatWeightsInInt8WouldMakeOfIt) {
  cluster_.network_gbps = 0.01;
  const RunForecast exact = forecast();
  for (const ScheduleForecast& each : exact.schedules) {
    ASSERT_TRUE(each.int8_weights.has_value());
    EXPECT_EQ(each.int8_weights->wire.sent_reduce, each.wire.sent_reduce);
    const double share = static_cast<double>(each.int8_weights->wire.received_gather) /
                         static_cast<double>(each.wire.received_gather);
    EXPECT_NEAR(share, 0.5 * (1 + 4.0 / 128), 1e-3);
    EXPECT_LT(each.int8_weights->time->step_s(), each.time->step_s());
  }
  EXPECT_THAT(forecast_text(exact), HasSubstr("(int8: with --zero_quantized_weights true)"));
  spec_.sharding.quantized_weights = true;
  const RunForecast quantized = forecast();
  for (size_t i = 0; i < exact.schedules.size(); ++i) {
    EXPECT_FALSE(quantized.schedules[i].int8_weights.has_value());
    EXPECT_EQ(quantized.schedules[i].wire.sent(), exact.schedules[i].int8_weights->wire.sent());
    EXPECT_EQ(quantized.schedules[i].time->step_s(), exact.schedules[i].int8_weights->time->step_s());
  }
  EXPECT_THAT(forecast_text(quantized), HasSubstr("in a step, weights in int8\n"));
}

TEST_F(ForecastTest, SaysWhatGradientsInInt4WouldMakeOfIt) {
  cluster_.network_gbps = 0.01;
  const RunForecast exact = forecast();
  for (const ScheduleForecast& each : exact.schedules) {
    ASSERT_TRUE(each.int4_gradients.has_value());
    EXPECT_EQ(each.int4_gradients->wire.received_gather, each.int8_weights->wire.received_gather);
    const double share = static_cast<double>(each.int4_gradients->wire.sent_reduce) /
                         static_cast<double>(each.wire.sent_reduce);
    EXPECT_NEAR(share, 0.25 * (1 + 8.0 / 128), 1e-3);
    EXPECT_LT(each.int4_gradients->time->step_s(), each.int8_weights->time->step_s());
    // The errors of all elements and, for checkpoints, a copy of this rank's own and those of a piece.
    const double errors =
        2.0 * (static_cast<double>(exact.num_parameters) * (1 + 1.0 / 4) + kParameterPieceElements);
    EXPECT_NEAR(static_cast<double>(each.int4_node_bytes - each.node_bytes), errors, errors / 1000);
  }
  EXPECT_THAT(forecast_text(exact),
              HasSubstr("(int4: with --zero_quantized_gradients int4 and --zero_quantized_weights true)\n"));
  spec_.sharding.quantized_weights = true;
  spec_.sharding.quantized_gradients = GradientCode::kInt4;
  const RunForecast quantized = forecast();
  for (size_t i = 0; i < exact.schedules.size(); ++i) {
    EXPECT_FALSE(quantized.schedules[i].int4_gradients.has_value());
    EXPECT_EQ(quantized.schedules[i].wire.sent(), exact.schedules[i].int4_gradients->wire.sent());
    EXPECT_EQ(quantized.schedules[i].node_bytes, exact.schedules[i].int4_node_bytes);
  }
  EXPECT_THAT(forecast_text(quantized), HasSubstr("in a step, weights in int8, gradients in int4\n"));
}

// A fiftieth of 4 bytes a parameter each way; the outer optimizer takes 4 + 4 / K bytes a parameter and
// buffers.
TEST_F(ForecastTest, SaysWhatTrainingApartWouldMakeOfIt) {
  cluster_.network_gbps = 0.01;
  spec_.precision.dtype = DType::kBF16;
  const RunForecast together = forecast();
  ASSERT_TRUE(together.seldom.has_value());
  const auto per_step = static_cast<double>(together.schedules[0].wire.sent());
  EXPECT_NEAR(static_cast<double>(together.seldom->wire.sent()), per_step / 50, 1e-3 * per_step / 50);
  EXPECT_LT(together.seldom->time->step_s(), together.schedules[0].time->step_s() / 5);
  EXPECT_THAT(forecast_text(together), HasSubstr("(every 50: with --sync_every 50,"));

  spec_.outer.sync_every = 50;
  const RunForecast apart = forecast();
  EXPECT_FALSE(apart.seldom.has_value());
  ASSERT_EQ(apart.schedules.size(), 1u);
  EXPECT_EQ(apart.schedules[0].wire.sent(), together.seldom->wire.sent());
  EXPECT_EQ(apart.schedules[0].node_bytes, together.seldom->node_bytes);
  EXPECT_THAT(forecast_text(apart), HasSubstr("\n  every 50 "));
  spec_.outer.num_fragments = 5;
  spec_.outer.sync_delay = 9;
  const RunForecast delayed = forecast();
  EXPECT_LT(delayed.time->exposed_s, apart.time->exposed_s);
  EXPECT_EQ(delayed.time->network_s, apart.time->network_s);
  cluster_.num_nodes = 1;
  EXPECT_EQ(forecast().time->network_s, 0);
  cluster_.num_nodes = 4;
  spec_.outer.sync_every = 0;
  spec_.optimizer.form = OptimizerForm::kMuon;
  EXPECT_FALSE(forecast().seldom.has_value());
}

// Weights packed for the run's own schedule would leave too little memory for the other schedules.
TEST_F(ForecastTest, OtherSchedulesPackWeightsOnlyWhereTheyHaveRoomForThem) {
  cluster_.ops = planned_cpu_ops(true);
  spec_.precision.dtype = DType::kBF16;
  spec_.saving.strategy = SaveStrategy::kNo;  // no snapshot, which takes what is free
  const RunForecast roomy = forecast();
  cluster_.node_memory_bytes = roomy.schedules.at(0).int4_node_bytes - 1;
  const ScheduleForecast per_step = forecast().schedules.at(0);
  EXPECT_EQ(per_step.node_bytes, roomy.schedules.at(0).node_bytes);
  EXPECT_TRUE(per_step.int4_fits);
  spec_.sharding.quantized_weights = true;
  spec_.sharding.quantized_gradients = GradientCode::kInt4;
  EXPECT_EQ(forecast().memory.node_bytes(), per_step.int4_node_bytes);

  spec_.sharding.quantized_weights = false;
  spec_.sharding.quantized_gradients = RunSpec().sharding.quantized_gradients;
  cluster_.node_memory_bytes = roomy.seldom->node_bytes - 1;
  const ScheduleForecast seldom = forecast().seldom.value();
  EXPECT_TRUE(seldom.fits);
  spec_.outer.sync_every = kForecastSyncEvery;
  EXPECT_EQ(forecast().memory.node_bytes(), seldom.node_bytes);

  spec_.outer.sync_every = 0;
  cluster_.node_memory_bytes = 0;
  EXPECT_FALSE(forecast().schedules.at(0).int4_fits);
}

}  // namespace
}  // namespace tessera
