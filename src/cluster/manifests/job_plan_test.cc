#include "cluster/manifests/job_plan.h"

#include <gtest/gtest.h>

#include "expect_error.h"

namespace tessera {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;

JobPlan plan(const char* preset, const char* instance_name, int num_nodes, int ranks, RunSettings spec = {}) {
  const std::vector<Instance> catalogue = shipped_catalogue();
  const Instance& instance = find_instance(catalogue, instance_name);
  ModelConfig config = preset_config(preset);
  if (config.vocab_size == 0) config.vocab_size = 32000;
  JobPlanRequest request;
  request.spec = &spec;
  request.config = &config;
  request.instance = &instance;
  const Allocatable node = allocatable_of(instance);
  request.pod = {node.pod_cpus, node.pod_memory_bytes};
  request.options.num_nodes = num_nodes;
  request.options.local_world_size = ranks;
  return plan_job(request);
}

TEST(JobPlan, KeepsTheRowsOfAStepAndFitsThePod) {
  const JobPlan found = plan("llama3-8b", "r7i.16xlarge", 4, 1);
  EXPECT_EQ(found.step_rows, 32) << "8 rows on each of 4 ranks";
  EXPECT_EQ(found.layout.micro_batch_rows * found.layout.accumulation * 4, 32);
  EXPECT_EQ(found.layout.world_size(), 4);
  EXPECT_GE(found.layout.zero_stage, 2);
  EXPECT_LE(found.forecast.memory.node_bytes(), 464 * kGiB);
  EXPECT_GT(found.forecast.disk.checkpoint_bytes, 80 * kGiB);
  EXPECT_TRUE(found.forecast.time);
  EXPECT_NEAR(found.usd_per_hour, 4 * 4.2336, 1e-9);
}

// Nodes that the catalogue lacks are planned like those that it has.
TEST(JobPlan, UnknownNodesHaveTheNetworkOfTypesOfTheirSize) {
  const std::vector<Instance> catalogue = shipped_catalogue();
  const auto step_s = [](const Instance& instance, PodSize pod, int num_nodes) {
    const ModelConfig config = preset_config("llama3-8b");
    const RunSpec spec;
    JobPlanRequest request;
    request.spec = &spec;
    request.config = &config;
    request.instance = &instance;
    request.pod = pod;
    request.options.num_nodes = num_nodes;
    request.options.local_world_size = 1;
    return plan_job(request).forecast.time->step_s();
  };
  for (const char* name : {"r7i.8xlarge", "r7i.16xlarge", "r7i.48xlarge", "m7i.24xlarge"}) {
    const Instance& known = find_instance(catalogue, name);
    const Allocatable node = allocatable_of(known);
    const Instance unknown = unknown_instance(catalogue, node.pod_cpus, node.pod_memory_bytes);
    EXPECT_EQ(unknown.figures.network_gbps, known.figures.network_gbps) << name;
    const PodSize pod = {node.pod_cpus, node.pod_memory_bytes};
    for (const int num_nodes : {2, 4, 16}) {
      const double expected = step_s(known, pod, num_nodes);
      EXPECT_NEAR(step_s(unknown, pod, num_nodes), expected, 0.1 * expected) << num_nodes << " x " << name;
    }
  }
  // More processors never mean a slower network.
  double previous = 0;
  for (const int64_t cpus : {1, 4, 5, 30, 48, 63, 96, 191, 192, 500, 4096}) {
    const double gbps = unknown_instance(catalogue, cpus, kGiB).figures.network_gbps;
    EXPECT_GE(gbps, previous) << cpus;
    previous = gbps;
  }
  EXPECT_EQ(previous, 50);
}

TEST(JobPlan, RefusesAModelThatDoesNotFitWithThePlannersReasons) {
  const Error error = error_of([] { plan("llama3-8b", "c7i.8xlarge", 1, 1); });
  EXPECT_EQ(error.code(), ExitCode::kBadConfig);
  const std::string text = error.what();
  EXPECT_EQ(text.find("c7i.8xlarge with "), 0u) << text;
  EXPECT_NE(text.find("GiB"), std::string::npos) << text;
  EXPECT_NE(text.find("nodes"), std::string::npos) << "what would fit: " << text;
}

TEST(JobPlan, ARunOnACardHasToFitTheCard) {
  RunSettings spec;
  spec.machine.device = DeviceKind::kCuda;
  const JobPlan small = plan("llama3.2-1b", "g6e.16xlarge", 1, 1, spec);
  EXPECT_EQ(small.forecast.memory.device, "NVIDIA L40S");
  EXPECT_GT(small.forecast.memory.device_bytes(), 18 * kGiB) << "16 bytes a parameter";
  EXPECT_LT(small.forecast.memory.device_bytes(), 44 * kGiB);
  EXPECT_LT(small.forecast.memory.step_memory().node_bytes(), 8 * kGiB) << "the rest";
  const std::string refusal = error_of([&] { plan("llama3-8b", "g6e.16xlarge", 1, 1, spec); }).what();
  EXPECT_EQ(refusal.find(
                "g6e.16xlarge with 463.3 GiB for a pod and 43.3 GiB of an NVIDIA L40S: the run does not fit"),
            0u)
      << refusal;
  spec.placement.optimizer_device = OffloadDevice::kCpu;
  const JobPlan offloaded = plan("llama3-8b", "p5.4xlarge", 1, 1, spec);
  EXPECT_LT(offloaded.forecast.memory.device_bytes(), 78 * kGiB);
  EXPECT_GT(offloaded.forecast.memory.step_memory().node_bytes(), 89 * kGiB)
      << "12 bytes a parameter on the host";
  EXPECT_EQ(error_of([&] { plan("llama3-8b", "g6.xlarge", 1, 1, spec); }).code(), ExitCode::kBadConfig);
}

// Rows at once are as many as fit: on a smaller card fewer, or with recomputation.
TEST(JobPlan, TheCardDecidesTheMicroBatch) {
  RunSettings spec;
  spec.machine.device = DeviceKind::kCuda;
  spec.data.max_length = 4096;
  const JobPlan on_l40s = plan("llama3.2-1b", "g6e.16xlarge", 1, 1, spec);
  const JobPlan on_h200 = plan("llama3.2-1b", "p5en.48xlarge", 1, 1, spec);
  EXPECT_EQ(on_h200.layout.micro_batch_rows, 8);
  EXPECT_FALSE(on_h200.layout.gradient_checkpointing);
  EXPECT_TRUE(on_l40s.layout.micro_batch_rows < 8 || on_l40s.layout.gradient_checkpointing);
  EXPECT_LT(on_h200.forecast.time->step_s(), on_l40s.forecast.time->step_s() / 2);
}

TEST(JobPlan, CardsAreOfTheInstance) {
  const std::vector<Instance> catalogue = shipped_catalogue();
  check_cards(catalogue, find_instance(catalogue, "p5.4xlarge"));
  expect_error(ExitCode::kUsage,
               {"r7i.16xlarge has no NVIDIA card", "the families g6, g6e, p4d, p4de, p5, p5e, p5en"},
               [&] { check_cards(catalogue, find_instance(catalogue, "r7i.16xlarge")); });
}

TEST(JobPlan, RefusesMoreRanksThanRows) {
  RunSettings spec;
  spec.batch.global_rows = 2;
  spec.batch.rows_per_device = 1;
  EXPECT_EQ(error_of([&] { plan("15m", "r7i.16xlarge", 4, 1, spec); }).code(), ExitCode::kBadConfig);
}

TEST(JobPlan, AdaptersTakeTheirOwnMemory) {
  expect_error(ExitCode::kBadConfig, {"does not fit in memory"},
               [] { plan("llama3-8b", "c7i.8xlarge", 1, 1); });
  RunSettings spec;
  spec.lora.finetuning_type = FinetuningType::kLora;
  spec.batch.rows_per_device = 1;
  const JobPlan exact = plan("llama3-8b", "c7i.8xlarge", 1, 1, spec);
  EXPECT_EQ(exact.forecast.num_frozen, 8'030'261'248);
  EXPECT_LT(exact.forecast.disk.checkpoint_bytes, kGiB);
  spec.base.bits = 4;
  EXPECT_LT(plan("llama3-8b", "c7i.8xlarge", 1, 1, spec).forecast.memory.node_bytes(),
            exact.forecast.memory.node_bytes() - 8 * kGiB);
}

TEST(JobPlan, TeamsShareTheRowsOfAStep) {
  RunSettings spec;
  spec.sharding.context_parallel_size = 2;
  spec.batch.global_rows = 2;
  spec.batch.rows_per_device = 1;
  const JobPlan found = plan("15m", "r7i.16xlarge", 4, 1, spec);
  EXPECT_EQ(found.layout.micro_batch_rows * found.layout.accumulation, 1);
  spec.batch.global_rows = 1;
  expect_error(ExitCode::kBadConfig, {"a step has 1 row, fewer than the 2 teams of the job"},
               [&] { plan("15m", "r7i.16xlarge", 4, 1, spec); });
}

TEST(JobPlan, RefusesMoreRanksThanCores) {
  expect_error(ExitCode::kBadConfig, {"a pod of 30 CPUs has 15 cores, fewer than its 16 ranks"},
               [] { plan("15m", "c7i.8xlarge", 1, 16); });
}

TEST(JobPlan, UnknownInstancesHaveAHint) {
  const std::vector<Instance> catalogue = shipped_catalogue();
  const auto refused = [&](const char* name, const char* message) {
    expect_error(ExitCode::kUsage, {message}, [&] { find_instance(catalogue, name); });
  };
  refused("r7i.16xlarg", "unknown instance type 'r7i.16xlarg'; did you mean r7i.16xlarge?");
  refused("r7i.17xlarge", "the catalogue has r7i.xlarge, r7i.2xlarge");
  refused("x9.48xlarge", "the catalogue has the families");
  refused("", "the catalogue has the families");
  EXPECT_EQ(find_instance(catalogue, "c7i.48xlarge").num_vcpus, 192);
}

TEST(JobPlan, NodesOfNoKnownTypeAreWhatTheirPodsHave) {
  const Instance node = unknown_instance(shipped_catalogue(), 32, 100 * kGiB);
  EXPECT_EQ(node.name, "");
  EXPECT_EQ(node.figures.num_cores, 16);
  EXPECT_EQ(node.memory_bytes, 100 * kGiB);
}

TEST(GracePeriods, AreLongEnoughForACheckpointAndEachLongerThanTheOneBefore) {
  const GracePeriods small = grace_periods(int64_t{1'000'000'000}, 500e6, 1, false);
  EXPECT_NEAR(small.needed_s, 3, 1e-9);
  EXPECT_EQ(small.run_s, 30);
  EXPECT_EQ(small.launch_s, 40);
  EXPECT_EQ(small.pod_s, 50);
  const GracePeriods large = grace_periods(int64_t{100'000'000'000}, 500e6, 4, false);
  EXPECT_EQ(large.run_s, 255) << "204 s are four fifths of it";
  EXPECT_FALSE(large.is_short);
}

TEST(GracePeriods, StayWithinTheNoticeOfASpotInstance) {
  const GracePeriods spot = grace_periods(int64_t{100'000'000'000}, 500e6, 4, true);
  EXPECT_EQ(spot.pod_s, kSpotGraceSeconds);
  EXPECT_EQ(spot.run_s, 90);
  EXPECT_TRUE(spot.is_short);
  const GracePeriods huge = grace_periods(int64_t{1} << 50, 1, 4, false);
  EXPECT_EQ(huge.pod_s, kMostGraceSeconds);
  EXPECT_TRUE(huge.is_short);
}

}  // namespace
}  // namespace tessera
