// Compares forecasts of `tessera plan` with calculations by hand.
#include "forecast/forecast.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "base/text.h"
#include "model/families/families.h"
#include "support/forecast_test_support.h"
#include "support/isolated_device.h"
#include "weights/parameter_pieces.h"

namespace tessera {
namespace {

using nlohmann::json;
using testing::HasSubstr;

TEST_F(ForecastTest, CountsTheMemoryOfADeviceByItself) {
  cluster_.num_nodes = 1;
  cluster_.rates.reset();
  spec_.precision.dtype = DType::kBF16;
  for (const bool fits : {true, false}) {
    const int64_t free_bytes = fits ? int64_t{40} << 30 : int64_t{1} << 30;
    cluster_.ops = [=](ThreadPool& pool) { return std::make_unique<OwnedIsolatedOps>(pool, free_bytes); };
    const RunForecast plan = forecast();
    EXPECT_EQ(plan.memory.device, "isolated");
    EXPECT_GT(plan.memory.device_bytes(), 16 * plan.num_parameters) << "weights, gradients and state";
    EXPECT_LT(plan.memory.node_bytes(), 16 * plan.num_parameters) << "of the host";
    EXPECT_EQ(plan.refusal.empty(), fits) << plan.refusal;
    EXPECT_FALSE(plan.time.has_value());
    EXPECT_THAT(forecast_text(plan), HasSubstr(fmt::format("{:>10}", format_bytes(free_bytes))));
    const json memory = json::parse(forecast_json(plan))["memory"];
    EXPECT_EQ(memory["device"], "isolated");
    EXPECT_EQ(memory["device_bytes"], plan.memory.device_bytes());
    EXPECT_EQ(memory["device_available_bytes"], free_bytes);
    EXPECT_EQ(memory["fits"], fits);
  }
  cluster_.ops = make_cpu_ops;
  EXPECT_FALSE(json::parse(forecast_json(forecast()))["memory"].contains("device"));
}

TEST_F(ForecastTest, ARankWritesAPieceOfWeightsWithItsState) {
  spec_.precision.dtype = DType::kBF16;
  for (const int num_nodes : {1, 4}) {
    cluster_.num_nodes = num_nodes;
    const RunForecast plan = forecast();
    const auto writing =
        std::ranges::find(plan.memory.items, std::string("writing weights"), &MemoryItem::name);
    ASSERT_NE(writing, plan.memory.items.end());
    // Several ranks write BF16 weights, their remainders and two moments.
    EXPECT_EQ(writing->size_bytes, num_nodes == 1 ? 12 << 20 : 12 * kParameterPieceElements);
  }
}

TEST_F(ForecastTest, TokensPassesAndOperationsFollowFromTheBatch) {
  cluster_.local_world_size = 2;
  const RunForecast whole = forecast();
  EXPECT_EQ(whole.tokens_per_pass, 2 * 512);
  EXPECT_EQ(whole.zero.passes_per_step, 4);
  EXPECT_EQ(whole.tokens_per_step, 4 * 2 * 4 * 2 * 512);
  // 6 per matrix element (the tied embedding counts as head) and token, 12 H E per pair of tokens.
  const double tokens = 2 * 4 * 2 * 512, layers = 18;
  const double matrices = layers * 768 * (2.0 * 768 + 2 * 256 + 3 * 2560) + 32000.0 * 768 * 511 / 512;
  const double pairs = tokens / 512 * (512 * 513 / 2);
  EXPECT_NEAR(whole.tflop_per_step * 1e12, 6 * tokens * matrices + 12 * layers * 768 * pairs, 1e6);
  // The two ranks divide the only core; logits are computed for the last token of a row, too.
  const double compute_s = whole.time->compute_s();
  EXPECT_NEAR(compute_s, whole.tflop_per_step / (2 * 0.5), 0.001 * compute_s);
  spec_.placement.gradient_checkpointing =
      true;  // computes the layers' forward passes again, but not the head's
  EXPECT_GT(forecast().time->compute_s(), 1.2 * compute_s);
  EXPECT_LE(forecast().time->compute_s(), compute_s * 4 / 3);
}

TEST_F(ForecastTest, GlobalBatchDecidesRowsAndPasses) {
  cluster_.num_nodes = 3;
  spec_.batch.global_rows = 20;
  spec_ = read_run_spec(table_, spec_, 3);  // at most 7 rows per rank: 2, 2, 2, 1
  const RunForecast plan = forecast();
  EXPECT_EQ(plan.tokens_per_step, 20 * 512);
  EXPECT_EQ(plan.tokens_per_pass, 2 * 512);
  EXPECT_EQ(plan.zero.passes_per_step, 4);
  spec_.batch.global_rows = 3;
  spec_ = read_run_spec(table_, spec_, 3);
  EXPECT_EQ(forecast().tokens_per_pass, 512) << "no more rows than there are";
}

TEST_F(ForecastTest, TheRingOfStateOnADiskFollowsTheFreeMemory) {
  for (const int local_world_size : {1, 2}) {
    cluster_.num_nodes = 1;
    cluster_.local_world_size = local_world_size;
    cluster_.node_memory_bytes = int64_t{64} << 30;
    spec_.placement.optimizer_device = OffloadDevice::kNvme;
    spec_.placement.pack_weights = AutoChoice::kNever;
    spec_.saving.strategy = SaveStrategy::kNo;  // no snapshot, which takes what is free
    const RunForecast roomy = forecast();
    const ParameterLayout layout = parameter_layout(config_);
    const int64_t most = layer_state_chunks(zero_layout(layout, 1, local_world_size), roomy.zero);
    EXPECT_GT(most, 4);
    EXPECT_EQ(roomy.zero.state_folder->chunks_ahead, most);
    cluster_.node_memory_bytes = 0;
    const RunForecast least = forecast();
    EXPECT_EQ(least.zero.state_folder->chunks_ahead, kMinChunksAhead);
    EXPECT_NE(least.refusal, "");
    const int64_t needed = least.memory.node_bytes(), range = roomy.memory.node_bytes() - needed;
    EXPECT_GT(range, 0);
    int64_t last = kMinChunksAhead;
    for (int64_t free_bytes = 0; free_bytes <= 2 * range + (1 << 20); free_bytes += range / 7) {
      cluster_.node_memory_bytes = needed + free_bytes;
      const RunForecast plan = forecast();
      EXPECT_EQ(plan.refusal, "") << "it fits with the smallest ring";
      EXPECT_LE(plan.memory.node_bytes(), needed + free_bytes / 2);
      EXPECT_GE(plan.zero.state_folder->chunks_ahead, last);
      last = plan.zero.state_folder->chunks_ahead;
      EXPECT_TRUE(free_bytes > 0 || last == kMinChunksAhead);
    }
    EXPECT_GT(last, most / 2);
  }
}

// 25 Gbit/s are 3.125e9 bytes per second.
TEST_F(ForecastTest, PerStepUsesTheNetworkOnceAndPerLayerInEveryPass) {
  const RunForecast four_passes = forecast();
  ASSERT_EQ(four_passes.schedules.size(), 2u);
  const ScheduleForecast& per_step = four_passes.schedules[0];
  const ScheduleForecast& per_layer = four_passes.schedules[1];
  const double once = 2.0 * static_cast<double>(four_passes.num_parameters) * 3 / 4;
  EXPECT_NEAR(static_cast<double>(per_step.wire.received_gather), once, once / 1000);
  EXPECT_NEAR(static_cast<double>(per_step.wire.sent_reduce), once, once / 1000);
  EXPECT_NEAR(per_step.network_s, 2 * once / 3.125e9, once / 3.125e9 / 500);
  EXPECT_NEAR(static_cast<double>(per_layer.wire.sent_reduce), 4 * once, once / 250);
  EXPECT_GT(per_layer.wire.received_gather, 4 * per_step.wire.received_gather);
  EXPECT_LT(per_layer.node_bytes, per_step.node_bytes);
  spec_.batch.accumulation_steps = 16;
  EXPECT_EQ(forecast().schedules[0].wire.received(), per_step.wire.received());
}

// A team of two has the rows of one rank, each half of their tokens.
TEST_F(ForecastTest, RanksThatShareRowsHaveTheirPartOfTheWork) {
  config_.num_key_value_heads = 4;
  spec_.batch.accumulation_steps = 1;
  spec_.data.max_length = 4096;
  spec_.placement.gradient_checkpointing = true;
  cluster_.network_gbps = 1e-3;
  const RunForecast alone = forecast();
  spec_.sharding.context_parallel_size = 2;
  const RunForecast shared = forecast();
  EXPECT_EQ(shared.tokens_per_step, alone.tokens_per_step / 2);
  EXPECT_EQ(shared.tokens_per_pass, alone.tokens_per_pass / 2);
  EXPECT_NEAR(shared.tflop_per_step, alone.tflop_per_step / 2, 1e-9);
  EXPECT_NEAR(shared.time->compute_s(), alone.time->compute_s() / 2, 0.01 * alone.time->compute_s());
  const auto bytes_of = [](const RunForecast& of, const std::string& name) {
    int64_t bytes = 0;
    for (const MemoryItem& item : of.memory.items) bytes += item.name == name ? item.size_bytes : 0;
    return bytes;
  };
  EXPECT_NEAR(static_cast<double>(bytes_of(shared, "kept for backward")),
              static_cast<double>(bytes_of(alone, "kept for backward")) / 2, 1e6);
  // Queries, keys and values of a rank's tokens, sent and received.
  const int64_t qkv = 4096 * (config_.num_attention_heads + 2 * 4) * config_.head_dim * 2;
  EXPECT_NEAR(static_cast<double>(bytes_of(shared, "all-to-all of heads")), static_cast<double>(2 * qkv),
              1e3);
  EXPECT_EQ(bytes_of(alone, "all-to-all of heads"), 0);
  // Forward, recomputed and backward: of every all-to-all half crosses.
  const int64_t o = 4096 * config_.num_attention_heads * config_.head_dim * 2;
  const int64_t sent = config_.num_hidden_layers * (2 * (qkv + o) + 2 * (qkv + o)) / 2;
  EXPECT_NEAR(shared.time->exposed_s - alone.time->exposed_s, static_cast<double>(sent) * 8 / 1e6,
              0.05 * static_cast<double>(sent) * 8 / 1e6);
  EXPECT_FALSE(shared.seldom.has_value());
}

TEST_F(ForecastTest, SaysHowManyRanksHaveRoomForARowTogether) {
  config_.max_position_embeddings = 1 << 17;
  spec_.data.max_length = 1 << 16;
  spec_.batch.rows_per_device = 1;
  spec_.placement.gradient_checkpointing = true;
  spec_.saving.strategy = SaveStrategy::kNo;
  cluster_.num_nodes = 1;
  cluster_.local_world_size = 4;
  spec_.sharding.stage = 2;
  const auto node_bytes = [&](int64_t size) {
    spec_.sharding.context_parallel_size = size;
    return forecast().memory.node_bytes();
  };
  for (const int64_t size : {2, 4}) {
    cluster_.node_memory_bytes = (node_bytes(size / 2) + node_bytes(size)) / 2;
    EXPECT_EQ(forecast().refusal, "");
    spec_.sharding.context_parallel_size = 1;
    EXPECT_THAT(forecast().refusal,
                HasSubstr(fmt::format("with context_parallel_size {} it would take", size)));
  }
  // 6 heads are no team's of 4 ranks.
  config_.num_attention_heads = 6;
  config_.num_key_value_heads = 3;
  EXPECT_THAT(forecast().refusal, testing::Not(HasSubstr("context_parallel_size")));
}

TEST_F(ForecastTest, RefusesTeamsThatCannotBe) {
  spec_.sharding.context_parallel_size = 8;
  EXPECT_THROW(forecast(), Error);  // more than the nodes have
  cluster_.num_nodes = 8;
  config_.num_attention_heads = config_.num_key_value_heads = 4;
  EXPECT_THROW(forecast(), Error);
}

TEST_F(ForecastTest, TimeOnTheNetworkHidesBehindComputeUntilItIsLonger) {
  cluster_.network_gbps = 1000;
  for (const ScheduleForecast& each : forecast().schedules) {
    EXPECT_EQ(each.time->exposed_s, 0.0);
    EXPECT_NEAR(each.time->step_s(), forecast().time->compute_s(), 1e-6);
  }
  cluster_.network_gbps = 0.01;  // everything except what overlaps with computing
  const RunForecast slow = forecast();
  const double compute_s = slow.time->compute_s();
  const StepTime& per_step = *slow.schedules[0].time;
  EXPECT_NEAR(per_step.exposed_s, per_step.network_s - compute_s / 4, 1e-6);  // one of four passes
  const StepTime& per_layer = *slow.schedules[1].time;
  EXPECT_NEAR(per_layer.exposed_s, per_layer.network_s - compute_s, 1e-6);
  EXPECT_NEAR(per_layer.step_s(), per_layer.network_s, 1e-4);
  EXPECT_NEAR(slow.schedules[1].network_s, per_layer.network_s, 1e-6);
}

TEST_F(ForecastTest, WithoutAPeakThereAreNoTimesOfComputing) {
  cluster_.rates.reset();
  const RunForecast plan = forecast();
  EXPECT_FALSE(plan.time.has_value());
  EXPECT_FALSE(plan.schedules[0].time.has_value());
  EXPECT_GT(plan.schedules[0].network_s, 0);
  EXPECT_THAT(forecast_text(plan), testing::Not(HasSubstr("\ntime ")));
  EXPECT_TRUE(json::parse(forecast_json(plan))["time"].is_null());
}

TEST_F(ForecastTest, SaysWhatIsOfThisMachine) {
  const std::string memory = "the free memory is this machine's: --memory sets a node's\n";
  const std::string peak = "the peak is this machine's, measured now: --tflops sets a node's\n";
  EXPECT_THAT(forecast_text(forecast()), testing::Not(testing::AnyOf(HasSubstr(memory), HasSubstr(peak))));
  cluster_.memory_is_of_this_machine = cluster_.rates_are_of_this_machine = true;
  EXPECT_THAT(forecast_text(forecast()), testing::AllOf(HasSubstr(memory), HasSubstr(peak)));
  const json out = json::parse(forecast_json(forecast()));
  EXPECT_EQ(out["memory"]["available_bytes_are_of_this_machine"], true);
  EXPECT_EQ(out["node_tflops_are_of_this_machine"], true);
}

// The nodes then gather per layer automatically.
TEST_F(ForecastTest, TheNumberOfNodesThatIsNamedFits) {
  spec_.saving.strategy = SaveStrategy::kNo;  // snapshots take what is free
  for (const int64_t memory_mib : {2500, 1200}) {
    SCOPED_TRACE(fmt::format("{} MiB", memory_mib));
    cluster_.num_nodes = 1;
    cluster_.node_memory_bytes = memory_mib << 20;
    const std::string refusal = forecast().refusal;
    EXPECT_THAT(refusal,
                testing::ContainsRegex(
                    "; [0-9]+ nodes of one rank would do with (these settings|gather_schedule per_layer)$"));
    const size_t count = refusal.rfind("; ", refusal.find(" nodes of one rank would do"));
    ASSERT_NE(count, std::string::npos) << refusal;
    cluster_.num_nodes = std::stoi(refusal.substr(count + 2));
    EXPECT_GT(cluster_.num_nodes, 1);
    EXPECT_EQ(forecast().refusal, "");
  }
}

TEST_F(ForecastTest, AutoTakesPerLayerWhenPerStepDoesNotFit) {
  spec_.saving.strategy = SaveStrategy::kNo;  // snapshots take what is free
  spec_.placement.pack_weights = AutoChoice::kNever;
  const RunForecast roomy = forecast();
  EXPECT_EQ(roomy.zero.schedule, GatherSchedule::kPerStep);
  cluster_.node_memory_bytes = (roomy.schedules[0].node_bytes + roomy.schedules[1].node_bytes) / 2;
  const RunForecast tight = forecast();
  EXPECT_EQ(tight.zero.schedule, GatherSchedule::kPerLayer);
  EXPECT_EQ(tight.refusal, "");
  EXPECT_FALSE(tight.schedules[0].fits);
  EXPECT_TRUE(tight.schedules[1].fits);
  spec_.sharding.gather_schedule = GatherChoice::kPerStep;
  EXPECT_THAT(forecast().refusal, HasSubstr("with gather_schedule per_layer it would take"));
}

// Keeps as many outputs as leave an eighth of the memory free without them; time falls as memory grows.
TEST_F(ForecastTest, SelectiveCheckpointingFillsFreeMemory) {
  spec_.saving.strategy = SaveStrategy::kNo;  // snapshots take what is free
  spec_.placement.pack_weights = AutoChoice::kNever;
  const auto without = forecast();
  spec_.placement.gradient_checkpointing = true;
  const auto full = forecast();
  spec_.placement.checkpointing_mode = CheckpointingMode::kSelective;
  EXPECT_EQ(forecast().memory.node_bytes(), without.memory.node_bytes());
  EXPECT_EQ(forecast().time->compute_s(), without.time->compute_s());
  const int64_t least = full.memory.node_bytes(), most = without.memory.node_bytes();
  ASSERT_LT(least, most);
  double last_s = full.time->compute_s();
  for (const int64_t eighths : {3, 6}) {
    const int64_t kept_bytes = (most - least) * eighths / 8;
    cluster_.node_memory_bytes = least + kept_bytes;
    const auto some = forecast();
    EXPECT_GT(some.memory.node_bytes(), least + kept_bytes * 3 / 4);
    EXPECT_LE(some.memory.node_bytes(), least + kept_bytes * 7 / 8);
    EXPECT_LT(some.time->compute_s(), last_s);
    last_s = some.time->compute_s();
  }
  cluster_.node_memory_bytes = least;
  EXPECT_EQ(forecast().memory.node_bytes(), least);
  EXPECT_EQ(forecast().refusal, "");
}

TEST_F(ForecastTest, WeightsArePackedWhereTheScheduleKeepsThemAndTheyFit) {
  spec_.saving.strategy = SaveStrategy::kNo;  // snapshots take what is free
  const auto has_packed = [&] {
    const std::vector<MemoryItem> items = forecast().memory.items;
    return std::any_of(items.begin(), items.end(),
                       [](const MemoryItem& item) { return item.name == "packed for the products"; });
  };
  const int64_t packed_bytes = forecast().schedules[0].node_bytes;
  if (!has_packed()) GTEST_SKIP() << "no packed forms here";
  spec_.placement.pack_weights = AutoChoice::kNever;
  EXPECT_FALSE(has_packed());
  const int64_t plain_bytes = forecast().schedules[0].node_bytes;
  ASSERT_LT(plain_bytes, packed_bytes);
  spec_.placement.pack_weights = AutoChoice::kAuto;
  cluster_.node_memory_bytes = (plain_bytes + packed_bytes) / 2;
  EXPECT_FALSE(has_packed());
  EXPECT_TRUE(forecast().schedules[0].fits);
  EXPECT_LT(forecast().schedules[0].node_bytes, cluster_.node_memory_bytes);
  cluster_.node_memory_bytes = 2 * packed_bytes;
  EXPECT_TRUE(has_packed());
  spec_.sharding.gather_schedule = GatherChoice::kPerLayer;
  EXPECT_FALSE(has_packed());
}

TEST_F(ForecastTest, BelowStage3ThereIsOneSchedule) {
  for (int64_t stage = 0; stage <= 2; ++stage) {
    spec_.sharding.stage = stage;
    EXPECT_EQ(forecast().schedules.size(), 1u);
  }
}

TEST_F(ForecastTest, OneProcessHasNoNetworkAndTheMemoryOfItsPlan) {
  cluster_.num_nodes = 1;
  spec_.placement.pack_weights = AutoChoice::kNever;
  const RunForecast plan = forecast();
  EXPECT_TRUE(plan.schedules.empty());
  EXPECT_EQ(plan.memory.shared_bytes(), 0);
  EXPECT_THAT(forecast_text(plan), testing::Not(HasSubstr("network")));
}

TEST_F(ForecastTest, SaysWhatModelAndCheckpointTakeOnDisk) {
  const RunForecast found = forecast();
  EXPECT_EQ(found.disk.model_bytes, 2 * found.num_parameters);
  EXPECT_EQ(found.disk.checkpoint_bytes, 12 * found.num_parameters);
  EXPECT_THAT(forecast_text(found),
              HasSubstr("disk     " + format_bytes(2 * found.num_parameters) + " for the model"));
  EXPECT_THAT(forecast_json(found), HasSubstr("\"checkpoint_bytes\""));
}

TEST_F(ForecastTest, TextFits80ColumnsForTheLargestModelAndJob) {
  config_ = preset_config("llama3-8b");
  spec_.data.max_length = 8192;
  spec_.placement.gradient_checkpointing = true;
  spec_.batch.rows_per_device = 64;
  spec_.batch.accumulation_steps = 100;
  cluster_.num_nodes = 1024;
  cluster_.memory_is_of_this_machine = cluster_.rates_are_of_this_machine = true;
  cluster_.local_world_size = 8;
  std::istringstream lines(forecast_text(forecast()));
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
}

TEST_F(ForecastTest, JsonHasWhatTheTextHas) {
  const RunForecast plan = forecast();
  const json out = json::parse(forecast_json(plan));
  EXPECT_EQ(out["num_nodes"], 4);
  EXPECT_EQ(out["gather_schedule"], "per_step");
  EXPECT_EQ(out["memory"]["node_bytes"], plan.memory.node_bytes());
  EXPECT_EQ(out["memory"]["fits"], true);
  std::map<std::string, int64_t> sums;
  for (const json& item : out["memory"]["items"]) sums[item["scope"]] += item["bytes"].get<int64_t>();
  EXPECT_EQ(sums["rank"], plan.memory.private_bytes());
  EXPECT_EQ(sums["node"], plan.memory.shared_bytes());
  EXPECT_EQ(sums["rank"] + sums["node"] + sums["first rank"], plan.memory.node_bytes());
  ASSERT_EQ(out["schedules"].size(), 3u);
  EXPECT_EQ(out["schedules"][2]["sync_every"], 50);
  EXPECT_EQ(out["schedules"][1]["schedule"], "per_layer");
  EXPECT_EQ(out["schedules"][1]["sent_reduce_bytes"], plan.schedules[1].wire.sent_reduce);
  EXPECT_EQ(out["schedules"][1]["int8_weights"]["sent_gather_bytes"],
            plan.schedules[1].int8_weights->wire.sent_gather);
}

}  // namespace
}  // namespace tessera
