#include "cluster/manifests/allocatable.h"

#include <gtest/gtest.h>

namespace tessera {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

Instance instance(const char* name) { return select_instances(shipped_catalogue(), {name}).at(0); }

TEST(Allocatable, FollowsTheFormulaOfEks) {
  const Allocatable node = allocatable_of(instance("r7i.16xlarge"));
  EXPECT_EQ(node.max_pods, 737);
  EXPECT_EQ(node.milli_cpus, 64'000 - 60 - 10 - 2 * 5 - 150);  // 60 x 2.5
  EXPECT_EQ(node.memory_bytes / kMiB, static_cast<int64_t>(512 * 1024 * 0.925) - (255 + 11 * 737) - 100);
  EXPECT_EQ(node.pod_cpus, 62);
  EXPECT_EQ(node.pod_memory_bytes / kMiB, node.memory_bytes / kMiB - 2048);
}

TEST(Allocatable, FewerPodsReserveLessMemory) {
  const Instance r7i = instance("r7i.16xlarge");
  EXPECT_EQ(allocatable_of(r7i, 110).memory_bytes - allocatable_of(r7i).memory_bytes,
            (737 - 110) * 11 * kMiB);
}

TEST(Allocatable, CpusAreAMultipleOfWhatRanksAndCoresNeed) {
  EXPECT_EQ(allocatable_of(instance("r7i.48xlarge"), {}, 4).pod_cpus, 188);
  EXPECT_EQ(allocatable_of(instance("r7i.48xlarge"), {}, 2).pod_cpus, 190);
  EXPECT_EQ(allocatable_of(instance("c7i.xlarge"), {}, 8).pod_cpus, 0);
}

TEST(Allocatable, EveryInstanceLeavesAPodMostOfItself) {
  for (const Instance& each : shipped_catalogue()) {
    const Allocatable node = allocatable_of(each);
    EXPECT_GE(node.pod_cpus, each.num_vcpus / 2) << each.name;
    EXPECT_GE(node.pod_memory_bytes, each.memory_bytes / 2) << each.name;
    EXPECT_LT(node.pod_cpus, each.num_vcpus) << each.name;
    EXPECT_LT(node.pod_memory_bytes, each.memory_bytes) << each.name;
  }
}

}  // namespace
}  // namespace tessera
