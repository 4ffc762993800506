#include "cluster/deploy/planned_job.h"

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cluster/deploy/pod_arguments.h"
#include "cluster/manifests/names.h"
#include "forecast/text/plan_text.h"
#include "settings/derived.h"
#include "settings/spec_variants.h"

namespace tessera {
namespace {

bool begins_with_digit(std::string_view name) { return name.front() >= '0' && name.front() <= '9'; }

// The configuration of an adapter on the pods' volume is not here.
RunSpec without_missing_adapter(const RunSpec& spec) {
  std::error_code error;
  if (spec.lora.adapter.empty() || std::filesystem::exists(spec.lora.adapter, error)) return spec;
  log_warning(
      "--adapter_name_or_path: {} is not on this machine: planned with adapters of rank {} on all modules",
      spec.lora.adapter, spec.lora.rank);
  return without_given_adapter(spec);
}

// Fixes the options that the given settings determine.
SearchOptions options_for(const RunSpec& spec, SearchOptions options, const JobSettings& job) {
  options.num_nodes = job.num_nodes;
  options.local_world_size = job.local_world_size;
  const int64_t world_size = int64_t{job.num_nodes} * job.local_world_size;
  if (spec.sources.given.contains("zero_stage"))
    options.zero_stage = static_cast<int>(spec.sharding.stage.value());
  // With --global_batch_size this flag is an upper limit.
  if (spec.sources.given.contains("per_device_train_batch_size")) {
    const int64_t rank_rows =
        global_batch_rows(spec.batch_options(world_size)) / num_row_ranks(spec.sharding, world_size);
    options.micro_batch_rows =
        std::clamp<int64_t>(rank_rows, 1, std::max<int64_t>(1, spec.batch.rows_per_device));
  }
  return options;
}

double checkpoint_seconds(const JobRun& run, const JobPlan& plan) {
  return static_cast<double>(plan.forecast.disk.checkpoint_bytes) / (run.storage_mb_per_s * 1e6);
}

// Whole ones, because a part is measured in this process: the same request gives the same manifest.
int64_t planned_gib(const JobPlan& plan) { return (plan.forecast.memory.node_bytes() >> 30) + 1; }

}  // namespace

std::string job_name(std::string_view given, std::string_view model, JobKind kind, int num_nodes) {
  const std::string suffix = pod_suffix(kind, num_nodes);
  std::string name(given);
  if (name.empty()) {
    name = label_of(model, kMaxLabelLength - suffix.size());
    if (name.empty() || begins_with_digit(name)) name = "train";
  }
  check_label("name", name, suffix);
  // The name of a Service: RFC 1035.
  if (begins_with_digit(name))
    fail(ExitCode::kUsage, "--name: expected a name that begins with a letter, found '{}'", name);
  return name;
}

void complete_job(const JobRun& run, JobSettings* job) {
  JobPlanRequest request;
  request.options = options_for(run.spec, run.options, *job);
  const RunSpec spec = without_missing_adapter(run.spec);
  request.spec = &spec;
  request.config = &run.config;
  request.instance = &run.instance;
  request.pod = job->size;
  const JobPlan plan = plan_job(request);
  job->grace = job_grace(run, plan);
  job->pod.pod_grace_s = job->grace.pod_s;
  job->planned_bytes = planned_gib(plan) << 30;
  job->train_arguments = pod_arguments(run.given_flags, plan.layout, plan.step_rows, job->name);
  job->about = lines_about(run, plan, *job);
}

GracePeriods job_grace(const JobRun& run, const JobPlan& plan) {
  const bool is_spot = run.may_be_spot && !run.instance.name.empty();
  const double step_s = plan.forecast.time ? plan.forecast.time->step_s() : 0;
  GracePeriods grace =
      grace_periods(plan.forecast.disk.checkpoint_bytes, run.storage_mb_per_s * 1e6, step_s, is_spot);
  if (run.grace_period_s) grace = with_grace_period(grace, *run.grace_period_s, is_spot);
  if (!is_spot && !run.instance.name.empty() && grace.pod_s > kSpotGraceSeconds) {
    log_warning(
        "the pods may take {} s after SIGTERM; the NodePool of `tessera deploy cluster`, which is made for "
        "spot nodes, removes a node 120 s after it is told to go (terminationGracePeriod): raise it, or use "
        "other nodes",
        grace.pod_s);
  }
  if (grace.is_short) {
    log_warning(
        "a step and a checkpoint of {} take {} s, more than four fifths of the {} s after SIGTERM: an "
        "evicted "
        "run resumes from an earlier checkpoint; save often (--save_steps), or give the speed of faster "
        "storage by --storage_mb_per_s",
        format_bytes(plan.forecast.disk.checkpoint_bytes), std::llround(grace.needed_s), grace.run_s);
  }
  return grace;
}

std::vector<std::string> lines_about(const JobRun& run, const JobPlan& plan, const JobSettings& job) {
  const RunForecast& forecast = plan.forecast;
  const Instance& instance = run.instance;
  const bool has_adapters = forecast.num_frozen > 0;
  const int64_t num_parameters = has_adapters ? forecast.num_frozen : forecast.num_parameters;
  std::vector<std::string> lines = {
      fmt::format(
          "{} with {:.2f} billion parameters{} on {}{}, {} each.", run.spec.model.folder,
          static_cast<double>(num_parameters) / 1e9,
          has_adapters ? fmt::format(" and {} in adapters", format_count(forecast.num_parameters)) : "",
          format_count(job.num_nodes, "node"), instance.name.empty() ? "" : " of " + instance.name,
          format_count(job.local_world_size, "rank")),
      fmt::format(
          "Memory of a node: {} GiB planned, {} in the pod; the rest holds files and copies of checkpoints.",
          planned_gib(plan), format_bytes(job.size.memory_bytes))};
  if (job.pod.on_card) {
    lines.push_back(fmt::format("Memory of the card, an {}: {} planned, {} free.", instance.card.name,
                                format_bytes(forecast.memory.device_bytes()),
                                format_bytes(instance.card.usable_bytes())));
  }
  lines.push_back(
      fmt::format("A checkpoint has {} and takes {} s at {:g} MB/s; a run has {} s after SIGTERM.",
                  format_bytes(forecast.disk.checkpoint_bytes), std::llround(checkpoint_seconds(run, plan)),
                  run.storage_mb_per_s, job.grace.run_s));
  if (forecast.time) {
    lines.push_back(fmt::format(
        "A step of {} takes about {} s{}.", format_count(plan.step_rows, "row"),
        three_digits(forecast.time->step_s()),
        job.num_nodes > 1 && instance.name.empty()
            ? fmt::format(", with {:g} Gbit/s between nodes (--network_gbps)", instance.figures.network_gbps)
            : ""));
  }
  if (plan.usd_per_hour > 0) {
    lines.push_back(fmt::format("The nodes cost about {:.2f} USD an hour on demand, {:.2f} as spot ({}, {}).",
                                plan.usd_per_hour, plan.usd_per_hour * instance.spot_share, instance.region,
                                instance.date));
  }
  return lines;
}

}  // namespace tessera
