// Simulated clusters from arguments to reports.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "expect_error.h"
#include "forecast/simulation/simulation.h"
#include "model/families/families.h"
#include "settings/run_settings.h"
#include "test_folder.h"

namespace tessera {
namespace {

using testing::HasSubstr;

class SimulationTest : public testing::Test {
 protected:
  SimulationTest() {
    declare_training_flags(&table_, &spec_);
    spec_.data.max_length = 512;
    spec_.batch.rows_per_device = 4;
    spec_.sharding.stage = 2;
    spec_.saving.strategy = SaveStrategy::kNo;  // snapshots take what is free
    InstanceFigures inputs;
    inputs.num_cores = 32;
    inputs.clock_ghz = 2.4;
    inputs.amx = true;
    inputs.network_gbps = 12.5;
    cluster_.rates = rates_of_instance(inputs);
    cluster_.network_gbps = 12.5;
    cluster_.node_memory_bytes = int64_t{256} << 30;
    options_.failures = FailureInputs{.node_mtbf_s = 3.6e6};
  }

  SimulatedCluster simulate(int num_nodes, const std::string& preset = "llama3.2-1b") {
    cluster_.num_nodes = num_nodes;
    const RunSpec spec = read_run_spec(table_, spec_, num_nodes * cluster_.local_world_size);
    return simulate_cluster(spec, preset_config(preset), cluster_, 32, std::nullopt, options_);
  }
  // The plan of what was simulated last.
  RunForecast forecast_of_plan() {
    const RunSpec spec = read_run_spec(table_, spec_, cluster_.num_nodes * cluster_.local_world_size);
    return forecast_run(spec, preset_config("llama3.2-1b"), cluster_, 32);
  }
  std::vector<SimulatedCluster> simulate_all() {
    std::vector<SimulatedCluster> all;
    for (const int nodes : {1, 4, 64, 1024}) all.push_back(simulate(nodes));
    return all;
  }

  FlagTable table_;
  RunSettings spec_;
  ClusterShape cluster_;
  SimulationOptions options_;
};

TEST_F(SimulationTest, OneNodeTakesWhatThePlanPredicts) {
  const SimulatedCluster one = simulate(1);
  const RunForecast forecast = forecast_of_plan();
  EXPECT_NEAR(one.step.step_s / forecast.time->step_s(), 1, 1e-3);
  EXPECT_NEAR(one.efficiency(), 1, 1e-9);
  EXPECT_EQ(one.step.node_sent_bytes, 0);
}

TEST_F(SimulationTest, EfficiencyFallsWithNodesRacksAndSlowNodes) {
  const SimulatedCluster four = simulate(4), many = simulate(64);
  EXPECT_LT(many.efficiency(), four.efficiency());
  options_.nodes_per_rack = 8;
  options_.oversubscription = 4;
  const SimulatedCluster racks = simulate(64);
  EXPECT_EQ(racks.num_racks, 8);
  EXPECT_EQ(racks.step.bottleneck(), Bottleneck::kUplink);
  EXPECT_GT(racks.step.step_s, many.step.step_s);
  options_.slow_nodes = {{3, 1.5}};
  const SimulatedCluster slow = simulate(64);
  EXPECT_GT(slow.step.step_s, racks.step.step_s);
  EXPECT_NEAR(slow.step.of(Bottleneck::kOthers), slow.step.step_s - racks.step.step_s, 1e-9);
  EXPECT_LT(slow.useful->useful_share, 1);
}

TEST_F(SimulationTest, NodesOnTheirOwnTakeWhatThePlanPredicts) {
  const SimulatedCluster together = simulate(4);
  spec_.outer.sync_every = 20;
  const SimulatedCluster apart = simulate(4);
  const RunForecast forecast = forecast_of_plan();
  EXPECT_NEAR(apart.step.step_s / forecast.time->step_s(), 1, 0.05);
  EXPECT_LT(apart.step.step_s, together.step.step_s);
  EXPECT_NEAR(apart.step.node_sent_bytes / together.step.node_sent_bytes, 1 / 20.0, 0.01 / 20);
  // If there is a delay, an exchange overlaps the steps after it.
  spec_.outer.num_fragments = 4;
  spec_.outer.sync_delay = 2;
  const SimulatedCluster streamed = simulate(4);
  EXPECT_NEAR(streamed.step.node_sent_bytes / apart.step.node_sent_bytes, 1, 0.01);
  EXPECT_LT(streamed.step.step_s, apart.step.step_s);
  EXPECT_NEAR(streamed.efficiency(), 1, 0.01);
  options_.slow_nodes = {{3, 1.5}};
  EXPECT_NEAR(simulate(4).step.step_s / streamed.step.step_s, 1.5, 0.05);
}

TEST_F(SimulationTest, RanksThatShareRowsTakeWhatThePlanPredicts) {
  cluster_.local_world_size = 2;
  spec_.sharding.context_parallel_size = 2;
  const SimulatedCluster one = simulate(1);
  const RunForecast forecast = forecast_of_plan();
  EXPECT_NEAR(one.step.step_s / forecast.time->step_s(), 1, 0.01);
  EXPECT_EQ(one.tokens_per_step, 4 * 512);
}

// Nodes that are not in step with one another may have more of an uplink than equal ones.
TEST_F(SimulationTest, NothingTakesLessThanNoTime) {
  spec_.data.max_length = 2048;
  options_.nodes_per_rack = 16;
  options_.oversubscription = 4;
  for (const double spread : {0.01, 0.03, 0.1}) {
    options_.spread = spread;
    const SimulatedCluster cluster = simulate(64, "llama3-8b");
    double sum = 0;
    for (const double seconds : cluster.step.seconds) {
      EXPECT_GE(seconds, 0) << spread;
      sum += seconds;
    }
    EXPECT_NEAR(sum / cluster.step.step_s, 1, 1e-9);
  }
}

TEST_F(SimulationTest, TakesTheComputationOfAMeasuredRun) {
  options_.measured = {{{2, 2, 3, 2}, 0.5, 0.25}};
  const SimulatedCluster cluster = simulate(4);
  // The slowest rank's passes, the update and the rest are not hidden.
  EXPECT_GT(cluster.step.step_s, 3.75);
  EXPECT_NEAR(cluster.ideal_s, 2.75, 1e-6);
}

TEST_F(SimulationTest, TableHas80ColumnsAndALineForEachCluster) {
  options_.checkpoint_steps = 100;
  options_.spread = 0.05;
  const std::string text = simulation_text(simulate_all());
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 80u) << line;
  EXPECT_THAT(text, HasSubstr("\n 1024 "));
  EXPECT_THAT(text, HasSubstr("best"));
}

TEST_F(SimulationTest, JsonAndPictureHaveEveryCluster) {
  const std::vector<SimulatedCluster> clusters = simulate_all();
  const nlohmann::json document = nlohmann::json::parse(simulation_json(clusters));
  ASSERT_EQ(document["clusters"].size(), clusters.size());
  EXPECT_EQ(document["clusters"][3]["nodes"], 1024);
  EXPECT_EQ(document["clusters"][2]["step_s"], clusters[2].step.step_s);
  const std::string picture = simulation_picture(clusters);
  EXPECT_THAT(picture, testing::StartsWith("<svg "));
  EXPECT_THAT(picture, testing::EndsWith("</svg>\n"));
  EXPECT_THAT(picture, HasSubstr("1024 nodes, compute"));
  EXPECT_THAT(picture, HasSubstr("minutes between checkpoints"));
}

TEST_F(SimulationTest, MemoryThatIsTooSmallIsSaid) {
  cluster_.node_memory_bytes = int64_t{4} << 30;
  const std::vector<SimulatedCluster> clusters = {simulate(4)};
  EXPECT_THAT(simulation_text(clusters), HasSubstr("does not fit"));
}

std::string step_line(int step, const std::string& ranks) {
  return R"({"step":)" + std::to_string(step) +
         R"(,"step_time_s":4,"time_wait_s":0.5,"time_optimizer_s":0.25,)" + R"("rank_compute_s":)" + ranks +
         "}\n";
}

TEST(MeasuredSteps, AreReadFromMetrics) {
  const TestFolder folder;
  const std::string path = folder.write("metrics.jsonl", step_line(1, "[9,9]") + step_line(2, "[9,9]") +
                                                             step_line(3, "[2,3]") + step_line(4, "[3,3]"));
  const std::vector<MeasuredStep> steps = read_measured_steps(path);
  ASSERT_EQ(steps.size(), 2u);
  EXPECT_EQ(steps[0].rank_compute_s, (std::vector<double>{2, 3}));
  EXPECT_DOUBLE_EQ(steps[0].update_s, 0.25);
  EXPECT_DOUBLE_EQ(steps[0].other_s, 0.75);
}

TEST(MeasuredSteps, NameTheFileTheLineAndWhatIsMissing) {
  const TestFolder folder;
  const auto expect = [&](const std::string& third_line, const std::string& message) {
    const std::string path =
        folder.write("metrics.jsonl", step_line(1, "[9]") + step_line(2, "[9]") + third_line);
    expect_error(ExitCode::kBadData, {message}, [&] { read_measured_steps(path); });
  };
  expect("", "expected more than 2 steps");
  expect(step_line(3, "[]"), "metrics.jsonl:3");
  expect(step_line(3, "[0]"), "expected a number above 0");
  expect(step_line(3, "\"x\""), "rank_compute_s");
  expect("{\"rank_compute_s\":[1]}\n", "time_optimizer_s");
  expect("nonsense\n", "metrics.jsonl:3");
}

}  // namespace
}  // namespace tessera
