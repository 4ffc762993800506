#include "cluster/deploy/job_nodes.h"

#include <gtest/gtest.h>

#include "cluster/manifests/allocatable.h"
#include "expect_error.h"

namespace tessera {
namespace {

constexpr int64_t kPodGiB = int64_t{1} << 30;

JobNodes nodes_of(const char* instance, bool on_card = false) {
  JobNodes nodes;
  nodes.instance = instance;
  nodes.on_card = on_card;
  return nodes;
}

JobSettings placed(const JobNodes& nodes, int64_t num_efa = 0) {
  JobSettings job;
  job.num_efa = num_efa;
  place_job(nodes, node_type(nodes, shipped_catalogue()), &job);
  return job;
}

TEST(JobNodes, APodGetsWhatTheNodeLeavesInWholeCoresForEveryRank) {
  const JobNodes nodes = nodes_of("r7i.48xlarge");
  const Instance instance = node_type(nodes, shipped_catalogue());
  const Allocatable node = allocatable_of(instance);
  EXPECT_EQ(node.pod_cpus, 190);
  EXPECT_EQ(pod_size(nodes, instance, 1).cpus, 190);
  EXPECT_EQ(pod_size(nodes, instance, 2).cpus, 188) << "two threads of each core, for two ranks alike";
  EXPECT_EQ(pod_size(nodes, instance, 2).memory_bytes, node.pod_memory_bytes);
}

TEST(JobNodes, APodGetsWhatWasAskedForIfTheNodeLeavesThat) {
  JobNodes nodes = nodes_of("r7i.16xlarge");
  nodes.cpus = 30;
  nodes.memory_bytes = 100 * kPodGiB + 5;
  const JobSettings job = placed(nodes);
  EXPECT_EQ(job.size.cpus, 30);
  EXPECT_EQ(job.size.memory_bytes, 100 * kPodGiB) << "whole MiB";
  nodes.cpus = 64;
  expect_error(ExitCode::kBadConfig, {"--cpus: a node of r7i.16xlarge leaves a pod 62 CPUs"},
               [&] { placed(nodes); });
  nodes.cpus.reset();
  nodes.memory_bytes = 512 * kPodGiB;
  expect_error(ExitCode::kBadConfig, {"--memory: a node of r7i.16xlarge leaves"}, [&] { placed(nodes); });
  nodes.memory_bytes = 1000;
  expect_error(ExitCode::kUsage, {"--memory: expected at least 1 MiB"}, [&] { placed(nodes); });
}

TEST(JobNodes, HaveARankForEachNumaNodeUnlessGiven) {
  JobNodes nodes = nodes_of("r7i.48xlarge");
  const Instance instance = node_type(nodes, shipped_catalogue());
  EXPECT_EQ(placed(nodes).local_world_size, instance.num_numa_nodes);
  nodes.local_world_size = 3;
  EXPECT_EQ(placed(nodes).local_world_size, 3);
}

TEST(JobNodes, OfATypeThatTheCatalogueLacksAreDescribedByTheirPods) {
  JobNodes nodes;
  expect_error(ExitCode::kUsage, {"--instance is missing: give the type of the nodes"},
               [&] { node_type(nodes, shipped_catalogue()); });
  nodes.cpus = 40;
  nodes.memory_bytes = 200 * kPodGiB;
  nodes.network_gbps = 7;
  EXPECT_EQ(node_type(nodes, shipped_catalogue()).figures.network_gbps, 7);
  const JobSettings job = placed(nodes);
  EXPECT_EQ(job.instance, "");
  EXPECT_TRUE(job.pod.needs_amx);
  EXPECT_EQ(job.size.cpus, 40);
  EXPECT_EQ(job.size.memory_bytes, 200 * kPodGiB);
}

TEST(JobNodes, ARankOnACardHasACardOfItsOwn) {
  JobNodes nodes = nodes_of("g6e.48xlarge", /*on_card=*/true);
  EXPECT_EQ(placed(nodes).local_world_size, 1);
  EXPECT_EQ(placed(nodes).num_cards, 1);
  EXPECT_FALSE(placed(nodes).pod.needs_amx);
  nodes.local_world_size = 8;
  EXPECT_EQ(placed(nodes).num_cards, 8);
  nodes.local_world_size = 9;
  expect_error(ExitCode::kUsage, {"--nproc_per_node: g6e.48xlarge has 8 NVIDIA cards", "found 9 ranks"},
               [&] { placed(nodes); });
  expect_error(ExitCode::kUsage, {"with device cuda it says which card"}, [] { placed(nodes_of("", true)); });
  expect_error(ExitCode::kUsage, {"r7i.16xlarge has no NVIDIA card"},
               [] { placed(nodes_of("r7i.16xlarge", true)); });
}

TEST(JobNodes, HaveTheEfaInterfacesThatAreAskedFor) {
  EXPECT_EQ(placed(nodes_of("r7i.48xlarge"), 1).num_efa, 1);
  expect_error(ExitCode::kUsage, {"--efa: r7i.16xlarge has 0 EFA interfaces, found 1"},
               [] { placed(nodes_of("r7i.16xlarge"), 1); });
}

}  // namespace
}  // namespace tessera
