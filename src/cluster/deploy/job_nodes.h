// The nodes that a job asks for, and what of them its pods get.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/manifests/job_manifest.h"
#include "forecast/instances/catalogue.h"

namespace tessera {

// The flags of `tessera deploy kubernetes` set these.
struct JobNodes {
  std::string instance;  // "" = of a type that cpus and memory_bytes describe
  bool on_card = false;
  std::optional<int64_t> local_world_size;
  std::optional<int64_t> cpus;          // of a pod
  std::optional<int64_t> memory_bytes;  // of a pod
  std::optional<int64_t> max_pods;
  std::optional<double> network_gbps;
};

// The type of the nodes. Error(kUsage) if the flags do not say which it is, or if it has no card and needs
// one.
Instance node_type(const JobNodes& nodes, const std::vector<Instance>& catalogue);

// Returns a pod's share of a node for this many ranks. Error(kBadConfig) if the node leaves less than was
// requested.
PodSize pod_size(const JobNodes& nodes, const Instance& instance, int local_world_size);

// Sets the job's instance, its ranks on a node (one for each NUMA node unless given, one on a card), cards
// and size of a pod. Warns of nodes that the NodePool does not start and of cards that no rank uses.
// Error(kUsage) for more ranks than cards, or more EFA interfaces than a node has.
void place_job(const JobNodes& nodes, const Instance& instance, JobSettings* job);

}  // namespace tessera
