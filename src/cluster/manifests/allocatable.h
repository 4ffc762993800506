// Computes what a node of a cluster leaves for the pods of a job.
#pragma once

#include <cstdint>
#include <optional>

#include "forecast/instances/catalogue.h"

namespace tessera {

struct Allocatable {
  int64_t milli_cpus = 0;    // allocatable by Kubernetes
  int64_t memory_bytes = 0;  // the same
  int64_t max_pods = 0;
  // For one pod per node, beside the daemon sets: whole processors, a multiple of `cpu_multiple`.
  int64_t pod_cpus = 0;
  int64_t pod_memory_bytes = 0;  // a multiple of 1 MiB
};

// An EKS node: kube-reserved is 255 MiB + 11 MiB for each pod that the node can take at most, and 6 % of the
// first CPU, 1 % of the second, 0.5 % of the next two and 0.25 % of the others (awslabs/amazon-eks-ami,
// nodeadm); hard eviction below 100 MiB. `max_pods` defaults to what the network interfaces of an instance of
// this size give addresses to.
Allocatable allocatable_of(const Instance& instance, std::optional<int64_t> max_pods = {},
                           int64_t cpu_multiple = 1);

// Manifests use these names for a kind of node, and this taint to keep other pods off it.
struct NodeKind {
  const char* type;           // label nodeType, and name of the NodePool, EC2NodeClass and ResourceFlavor
  const char* taint;          // with effect NoSchedule
  const char* runtime;        // ClusterTrainingRuntime of the jobs there
  const char* cluster_queue;  // of Kueue
  const char* queue;          // the LocalQueue in front of it
};
inline constexpr NodeKind kAmxNodes = {"cpu-amx", "intel.com/amx", "tessera", "tessera", "training"};
inline constexpr NodeKind kCardNodes = {"gpu", "nvidia.com/gpu", "tessera-cuda", "tessera-gpu",
                                        "training-gpu"};
inline const NodeKind& node_kind(bool on_card) { return on_card ? kCardNodes : kAmxNodes; }

// Resources of Kubernetes that device plugins offer.
inline constexpr const char* kCardResource = "nvidia.com/gpu";
inline constexpr const char* kEfaResource = "vpc.amazonaws.com/efa";

}  // namespace tessera
