// A job of `tessera deploy kubernetes`, completed from the plan of its run.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/flags.h"
#include "cluster/deploy/job_nodes.h"
#include "cluster/manifests/job_manifest.h"
#include "cluster/manifests/job_plan.h"

namespace tessera {

// The name that was given, or one made of the model's. Error(kUsage) unless Kubernetes takes it for a Service
// and for the pods that the job's kind names after it.
std::string job_name(std::string_view given, std::string_view model, JobKind kind, int num_nodes);

struct JobRun {
  // `resolved` for all ranks.
  explicit JobRun(const RunSpec& resolved) : spec(resolved) {}

  RunSpec spec;
  ModelConfig config;
  Instance instance;
  SearchOptions options;  // of asked_options()
  double storage_mb_per_s = 500;
  bool may_be_spot = false;
  std::optional<double> grace_period_s;  // nullopt: from the plan
  std::vector<const Flag*> given_flags;  // of `tessera train`
};

// Plans the run on the placed job's nodes and sets the job's grace periods, arguments and the lines about it.
// Warns of grace periods that are too long for the NodePool or too short for a checkpoint. Errors of
// plan_job() and with_grace_period().
void complete_job(const JobRun& run, JobSettings* job);

// The periods that a planned job needs, with what complete_job() warns of.
GracePeriods job_grace(const JobRun& run, const JobPlan& plan);

// The lines of the comment above the job: model, nodes, memory, checkpoints, time and price.
std::vector<std::string> lines_about(const JobRun& run, const JobPlan& plan, const JobSettings& job);

}  // namespace tessera
