// Plans what a job in a cluster needs, with the planner of `tessera plan` and `tessera train`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cluster/manifests/allocatable.h"
#include "forecast/forecast.h"
#include "forecast/instances/search.h"
#include "formats/huggingface/model_config.h"
#include "settings/run_settings.h"

namespace tessera {

// The instance type of this name. Error(kUsage) with the nearest name, or those of its family.
const Instance& find_instance(const std::vector<Instance>& catalogue, const std::string& name);
// Error(kUsage) with the families that have cards for an instance type that has none and is to have some.
void check_cards(const std::vector<Instance>& catalogue, const Instance& instance);
// Nodes of a type that the catalogue lacks: like those of its first family with AMX that have as many CPUs,
// whose network they are taken to have, but with the CPUs and memory that their pods get. The name is "".
Instance unknown_instance(const std::vector<Instance>& catalogue, int64_t cpus, int64_t memory_bytes);

struct PodSize {
  int64_t cpus = 0;  // hardware threads, as Kubernetes counts
  int64_t memory_bytes = 0;
};

// Seconds a pod may take to shut down after SIGTERM.
struct GracePeriods {
  double needed_s = 0;    // for a step and a checkpoint
  int64_t run_s = 0;      // train --grace_period_s
  int64_t launch_s = 0;   // launch --termination_grace_s
  int64_t pod_s = 0;      // terminationGracePeriodSeconds
  bool is_short = false;  // a checkpoint does not fit into what the nodes allow
};

// A spot instance is gone two minutes after its notice; Karpenter needs some seconds of them.
inline constexpr int64_t kSpotGraceSeconds = 110;
// A ClusterTrainingRuntime allows every job this much; each job asks its launcher for less.
inline constexpr int64_t kMostGraceSeconds = 600;

// The program takes a step and a checkpoint to fit if they take four fifths of its grace period.
GracePeriods grace_periods(int64_t checkpoint_bytes, double storage_bytes_per_s, double step_s, bool spot);

// Replaces the run's period with the user's. Error(kUsage) if the nodes do not allow it.
GracePeriods with_grace_period(GracePeriods grace, double run_s, bool spot);
// Returns the longest periods that the nodes allow.
GracePeriods longest_grace(bool spot);
// Returns the periods of a run in a pod that has `pod_s` seconds.
GracePeriods grace_of_pod(int64_t pod_s);

struct JobPlanRequest {
  // Resolved for all ranks, with the final rows per step; options limits what the plan may choose.
  RunSpec* spec = nullptr;
  const ModelConfig* config = nullptr;  // of the model; the arguments say what is trained beside it
  const Instance* instance = nullptr;
  PodSize pod;
  SearchOptions options;  // num_nodes and local_world_size are set
};

struct JobPlan {
  RunLayout layout;
  int64_t step_rows = 0;
  RunForecast forecast;
  double usd_per_hour = 0;  // of all nodes, on demand
};

// With device cuda, plans for one card of the instance, which must have cards. Error(kBadConfig) with the
// planner's reasons if the job does not fit into the memory of the pods or of the card.
JobPlan plan_job(const JobPlanRequest& request);

}  // namespace tessera
