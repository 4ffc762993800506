#include "cluster/manifests/allocatable.h"

#include <algorithm>

namespace tessera {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
// The share of the advertised memory that Karpenter expects a node to have before it has seen one
// (vmMemoryOverheadPercent 0.075). A pod that asks for more gets no node, even though it would fit.
constexpr double kVisibleShare = 0.925;
constexpr int64_t kEvictionBytes = 100 * kMiB;
// For the pods that run on every node: network, proxy, storage drivers, exporter, logs, node problem
// detector.
constexpr int64_t kDaemonMilliCpus = 1000;
constexpr int64_t kDaemonBytes = 2048 * kMiB;

// Interfaces x (addresses - 1) + 2 for the sizes of the seventh and eighth generation.
int64_t pods_of_interfaces(int64_t num_vcpus) { return num_vcpus <= 8 ? 58 : num_vcpus <= 48 ? 234 : 737; }

int64_t reserved_milli_cpus(int64_t num_vcpus) {
  // In thousandths of a milli-CPU: 0.25 % of a CPU is 2.5 of them.
  int64_t reserved = 0;
  for (int64_t cpu = 0; cpu < num_vcpus; ++cpu) {
    reserved += cpu == 0 ? 60'000 : cpu == 1 ? 10'000 : cpu < 4 ? 5'000 : 2'500;
  }
  return (reserved + 999) / 1000;
}

}  // namespace

Allocatable allocatable_of(const Instance& instance, std::optional<int64_t> max_pods, int64_t cpu_multiple) {
  Allocatable node;
  node.max_pods = max_pods.value_or(pods_of_interfaces(instance.num_vcpus));
  node.milli_cpus = 1000 * instance.num_vcpus - reserved_milli_cpus(instance.num_vcpus);
  node.memory_bytes = static_cast<int64_t>(static_cast<double>(instance.memory_bytes) * kVisibleShare) -
                      (255 + 11 * node.max_pods) * kMiB - kEvictionBytes;
  node.pod_cpus =
      std::max<int64_t>(0, node.milli_cpus - kDaemonMilliCpus) / 1000 / cpu_multiple * cpu_multiple;
  node.pod_memory_bytes = std::max<int64_t>(0, node.memory_bytes - kDaemonBytes) / kMiB * kMiB;
  return node;
}

}  // namespace tessera
