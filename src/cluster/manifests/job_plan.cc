#include "cluster/manifests/job_plan.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "base/error.h"
#include "base/name_hint.h"
#include "base/text.h"
#include "devices/planned_card.h"
#include "devices/planned_cpu.h"
#include "settings/derived.h"
#include "settings/fsdp/fsdp_settings.h"
#include "settings/spec_variants.h"

namespace tessera {
namespace {

constexpr int64_t kGraceStepSeconds = 10;  // from one grace period to the next longer one
constexpr int64_t kLeastGraceSeconds = 30;
constexpr double kUsedShareOfGrace = 0.8;

int64_t most_run_seconds(bool spot) {
  return (spot ? kSpotGraceSeconds : kMostGraceSeconds) - 2 * kGraceStepSeconds;
}

// The part of the instance that the pod gets, as a node for the search.
Instance node_of(const Instance& instance, const PodSize& pod) {
  Instance node = instance;
  const int64_t threads_per_core = std::max<int64_t>(1, instance.num_vcpus / instance.figures.num_cores);
  node.figures.num_cores = std::max<int64_t>(1, pod.cpus / threads_per_core);
  node.memory_bytes = static_cast<int64_t>(static_cast<double>(instance.memory_bytes) /
                                           static_cast<double>(instance.usable_bytes()) *
                                           static_cast<double>(pod.memory_bytes));
  return node;
}

// The requested layout, whether it fits or not.
RunLayout asked_layout(const JobPlanRequest& request, const Instance& node, int64_t step_rows) {
  const RunSpec& spec = *request.spec;
  RunLayout layout;
  layout.num_nodes = *request.options.num_nodes;
  layout.local_world_size = *request.options.local_world_size;
  layout.num_threads = std::max<int64_t>(1, node.figures.num_cores / layout.local_world_size);
  layout.zero_stage = request.options.zero_stage.value_or(layout.world_size() > 1 ? 2 : 0);
  layout.schedule = request.options.schedule.value_or(GatherSchedule::kPerStep);
  layout.gradient_checkpointing = spec.placement.gradient_checkpointing;
  layout.micro_batch_rows = request.options.micro_batch_rows.value_or(1);
  layout.accumulation = accumulation_of_global_batch(step_rows, layout.micro_batch_rows,
                                                     num_row_ranks(spec.sharding, layout.world_size()));
  return layout;
}

RunForecast forecast_of(const JobPlanRequest& request, const ModelConfig& config, const Instance& node,
                        const RunLayout& layout, int64_t step_rows) {
  ClusterShape cluster;
  cluster.num_nodes = layout.num_nodes;
  cluster.local_world_size = layout.local_world_size;
  cluster.node_memory_bytes = request.pod.memory_bytes;
  cluster.has_disk = false;
  cluster.network_gbps = node.figures.network_gbps;
  const RunSpec& spec = *request.spec;
  if (spec.machine.device == DeviceKind::kCuda) {
    cluster.ops = planned_card_ops(node.card.name, node.card.usable_bytes());
    cluster.rates = rates_of_card(node.card.figures, spec.placement.optimizer_is_on_host());
  } else {
    cluster.ops = planned_cpu_ops(node.figures.amx);
    cluster.rates = rates_of_instance(node.figures);
  }
  return forecast_run(arguments_for(spec, layout, step_rows), config, cluster, layout.num_threads);
}

}  // namespace

const Instance& find_instance(const std::vector<Instance>& catalogue, const std::string& name) {
  const auto found = std::ranges::find(catalogue, name, &Instance::name);
  if (found != catalogue.end()) return *found;
  std::vector<std::string> names, of_family;
  std::set<std::string> families;
  const std::string family = name.substr(0, name.find('.'));
  for (const Instance& each : catalogue) {
    names.push_back(each.name);
    families.insert(each.family);
    if (each.family == family) of_family.push_back(each.name);
  }
  const std::string hint = hint_for_name(name, names, names, {}).text("", "");
  if (!hint.empty())
    fail(ExitCode::kUsage, "--instance: unknown instance type '{}'{}", printable(name), hint);
  fail(ExitCode::kUsage, "--instance: unknown instance type '{}'; the catalogue has {}", printable(name),
       of_family.empty() ? fmt::format("the families {}; --catalogue FILE adds others, and --cpus with "
                                       "--memory describe nodes of any other type",
                                       fmt::join(families, ", "))
                         : fmt::format("{}", fmt::join(of_family, ", ")));
}

void check_cards(const std::vector<Instance>& catalogue, const Instance& instance) {
  if (instance.num_cards > 0) return;
  std::set<std::string> families;
  for (const Instance& each : catalogue) {
    if (each.num_cards > 0) families.insert(each.family);
  }
  fail(ExitCode::kUsage, "--instance: {} has no NVIDIA card, which device cuda needs; {}", instance.name,
       families.empty() ? std::string("no instance type of the catalogue has one")
                        : fmt::format("the families {} have some", fmt::join(families, ", ")));
}

Instance unknown_instance(const std::vector<Instance>& catalogue, int64_t cpus, int64_t memory_bytes) {
  const Instance* like = nullptr;
  for (const Instance& each : catalogue) {
    if (!each.figures.amx || each.num_cards > 0) continue;
    if (like == nullptr) like = &each;
    if (each.family != like->family) continue;
    if (like->num_vcpus < cpus ? each.num_vcpus > like->num_vcpus
                               : each.num_vcpus >= cpus && each.num_vcpus < like->num_vcpus) {
      like = &each;
    }
  }
  if (like == nullptr) fail(ExitCode::kBadConfig, "--catalogue: no instance type has AMX");
  Instance instance = *like;
  const double scale = static_cast<double>(cpus) / static_cast<double>(like->num_vcpus);
  instance.name = "";
  instance.num_vcpus = cpus;
  instance.figures.num_cores = std::max<int64_t>(1, cpus * like->figures.num_cores / like->num_vcpus);
  instance.figures.memory_gb_per_s *= scale;
  instance.num_numa_nodes = 1;
  instance.memory_bytes = memory_bytes;
  instance.usd_per_hour = 0;
  return instance;
}

GracePeriods grace_periods(int64_t checkpoint_bytes, double storage_bytes_per_s, double step_s, bool spot) {
  GracePeriods grace;
  grace.needed_s = static_cast<double>(checkpoint_bytes) / storage_bytes_per_s + step_s;
  const double wanted = std::ceil(std::min(grace.needed_s / kUsedShareOfGrace, 1e6));
  const int64_t run_s = std::clamp(static_cast<int64_t>(wanted), kLeastGraceSeconds, most_run_seconds(spot));
  return with_grace_period(grace, static_cast<double>(run_s), spot);
}

GracePeriods with_grace_period(GracePeriods grace, double run_s, bool spot) {
  const int64_t most = most_run_seconds(spot);
  if (!(run_s >= 1 && run_s <= static_cast<double>(most))) {
    fail(ExitCode::kUsage, "--grace_period_s: expected 1 to {}{}, found {}", most,
         spot ? ", since spot nodes are gone two minutes after their notice (--capacity on-demand)" : "",
         run_s);
  }
  grace.run_s = static_cast<int64_t>(std::ceil(run_s));
  grace.launch_s = grace.run_s + kGraceStepSeconds;
  grace.pod_s = grace.launch_s + kGraceStepSeconds;
  grace.is_short = grace.needed_s > kUsedShareOfGrace * static_cast<double>(grace.run_s);
  return grace;
}

GracePeriods longest_grace(bool spot) {
  return with_grace_period({}, static_cast<double>(most_run_seconds(spot)), spot);
}

GracePeriods grace_of_pod(int64_t pod_s) {
  const int64_t run_s = std::max<int64_t>(1, pod_s - 2 * kGraceStepSeconds);
  return with_grace_period({}, static_cast<double>(run_s), /*spot=*/false);
}

JobPlan plan_job(const JobPlanRequest& request) {
  const int64_t world_size = int64_t{*request.options.num_nodes} * *request.options.local_world_size;
  const int64_t step_rows = global_batch_rows(request.spec->batch_options(world_size));
  const RunSpec spec = with_rows(
      *request.spec, {.rows_per_device = 1, .accumulation_steps = step_rows, .step_rows = step_rows});
  ModelConfig config = *request.config;
  check_wrapped_classes(spec.sources.fsdp, config);
  config.lora = lora_config_of(spec.lora, spec.model, config);
  config.base_quantization = base_quantization_of(spec.base);

  const Instance node = node_of(*request.instance, request.pod);
  if (node.figures.num_cores < *request.options.local_world_size) {
    fail(ExitCode::kBadConfig, "a pod of {} has {}, fewer than its {}", format_count(request.pod.cpus, "CPU"),
         format_count(node.figures.num_cores, "core"),
         format_count(*request.options.local_world_size, "rank"));
  }
  JobSize job;
  job.max_row_tokens = job.mean_row_tokens = spec.data.row_limit(config);
  const SearchResult result = search_instances(spec, config, job, {node}, request.options);

  JobPlan plan;
  plan.step_rows = step_rows;
  plan.usd_per_hour = request.instance->usd_per_hour * *request.options.num_nodes;
  if (!result.combinations.empty()) {
    plan.layout = result.combinations.front().layout;
    plan.forecast = forecast_of(request, config, node, plan.layout, step_rows);
  } else {
    const int64_t row_ranks = num_row_ranks(spec.sharding, world_size);
    if (step_rows < row_ranks) {
      fail(ExitCode::kBadConfig, "a step has {}, fewer than the {} of the job: raise --global_batch_size",
           format_count(step_rows, "row"),
           format_count(row_ranks, spec.sharding.context_parallel_size > 1 ? "team" : "rank"));
    }
    plan.layout = asked_layout(request, node, step_rows);
    plan.forecast = forecast_of(request, config, node, plan.layout, step_rows);
    if (plan.forecast.refusal.empty()) {
      plan.forecast.refusal =
          fmt::format("the job needs at least {} on a {}", format_bytes(result.refusals.at(0).needed_bytes),
                      spec.machine.device == DeviceKind::kCuda ? "card" : "node");
    }
  }
  if (!plan.forecast.refusal.empty()) {
    const Card& card = request.instance->card;
    fail(ExitCode::kBadConfig, "{} with {} for a pod{}: {}",
         request.instance->name.empty() ? "nodes" : request.instance->name,
         format_bytes(request.pod.memory_bytes),
         spec.machine.device == DeviceKind::kCuda
             ? fmt::format(" and {} of an {}", format_bytes(card.usable_bytes()), card.name)
             : "",
         plan.forecast.refusal);
  }
  return plan;
}

}  // namespace tessera
