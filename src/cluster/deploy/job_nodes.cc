#include "cluster/deploy/job_nodes.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cluster/manifests/allocatable.h"
#include "forecast/instances/node_pool.h"

namespace tessera {
namespace {

void check_pool(const Instance& instance, bool on_card) {
  if (instance.name.empty() || in_node_pool(instance, on_card)) return;
  if (instance.num_cards > 0) {
    log_warning("{} has {}, which only a run with --device cuda uses", instance.name,
                format_count(instance.num_cards, "NVIDIA card"));
  }
  log_warning(
      "the NodePool of `tessera deploy cluster` starts no {}: it has types with AMX, 8xlarge to 48xlarge, "
      "not "
      "bare metal",
      instance.name);
}

// One card for each rank. Ranks may share a card, but a pod has what its node has.
void take_cards(const Instance& instance, JobSettings* job) {
  if (job->local_world_size > instance.num_cards) {
    fail(ExitCode::kUsage, "--nproc_per_node: {} has {}, one for each rank, found {} ranks", instance.name,
         format_count(instance.num_cards, "NVIDIA card"), job->local_world_size);
  }
  job->num_cards = job->local_world_size;
  if (instance.num_cards > job->num_cards) {
    log_warning("{} has {}, of which a node uses {}: a type with fewer costs less", instance.name,
                format_count(instance.num_cards, "card"), job->num_cards);
  }
}

}  // namespace

Instance node_type(const JobNodes& nodes, const std::vector<Instance>& catalogue) {
  if (nodes.instance.empty() && nodes.on_card) {
    fail(ExitCode::kUsage,
         "--instance is missing: with device cuda it says which card the plan counts with; --catalogue FILE "
         "adds types of your own");
  }
  if (nodes.instance.empty() && !(nodes.cpus && nodes.memory_bytes)) {
    fail(ExitCode::kUsage,
         "--instance is missing: give the type of the nodes, or with --cpus and --memory what a pod has on "
         "nodes of any other type");
  }
  Instance instance = nodes.instance.empty() ? unknown_instance(catalogue, *nodes.cpus, *nodes.memory_bytes)
                                             : find_instance(catalogue, nodes.instance);
  if (nodes.on_card) check_cards(catalogue, instance);
  if (nodes.network_gbps) instance.figures.network_gbps = *nodes.network_gbps;
  return instance;
}

PodSize pod_size(const JobNodes& nodes, const Instance& instance, int local_world_size) {
  PodSize size{nodes.cpus.value_or(0), nodes.memory_bytes.value_or(0) >> 20 << 20};
  if (nodes.memory_bytes && size.memory_bytes == 0)
    fail(ExitCode::kUsage, "--memory: expected at least 1 MiB, found {}", size_text(*nodes.memory_bytes));
  if (instance.name.empty()) return size;
  const int64_t threads_per_core = std::max<int64_t>(1, instance.num_vcpus / instance.figures.num_cores);
  const Allocatable most = allocatable_of(instance, nodes.max_pods);
  const Allocatable even = allocatable_of(instance, nodes.max_pods, local_world_size * threads_per_core);
  if (size.cpus == 0) size.cpus = even.pod_cpus > 0 ? even.pod_cpus : most.pod_cpus;
  if (size.memory_bytes == 0) size.memory_bytes = most.pod_memory_bytes;
  if (size.cpus > most.pod_cpus || size.memory_bytes > most.pod_memory_bytes) {
    fail(
        ExitCode::kBadConfig,
        "--{}: a node of {} leaves a pod {} CPUs and {}: the rest is reserved for Kubernetes and daemon sets",
        size.cpus > most.pod_cpus ? "cpus" : "memory", instance.name, most.pod_cpus,
        format_bytes(most.pod_memory_bytes));
  }
  return size;
}

void place_job(const JobNodes& nodes, const Instance& instance, JobSettings* job) {
  check_pool(instance, nodes.on_card);
  job->instance = instance.name;
  job->pod.needs_amx = instance.figures.amx && !nodes.on_card;
  job->local_world_size = static_cast<int>(
      nodes.local_world_size.value_or(nodes.on_card ? 1 : std::max<int64_t>(1, instance.num_numa_nodes)));
  if (nodes.on_card) take_cards(instance, job);
  if (job->num_efa > 0 && !instance.name.empty() && job->num_efa > instance.num_efa_cards) {
    fail(ExitCode::kUsage, "--efa: {} has {}, found {}", instance.name,
         format_count(instance.num_efa_cards, "EFA interface"), job->num_efa);
  }
  job->size = pod_size(nodes, instance, job->local_world_size);
}

}  // namespace tessera
