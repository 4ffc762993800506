#include "cli/plan/plan_simulation.h"

#include <algorithm>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "base/text_fields.h"
#include "cli/flag_parser.h"
#include "cli/plan/plan_job.h"
#include "cli/terminal/terminal.h"
#include "io/file.h"

namespace tessera {
namespace {

constexpr int kMaxSimulatedNodes = 4096;
constexpr size_t kMaxClusters = 20;
constexpr const char* kSection = "Plan: simulation";
constexpr double kLeast = 1e-6, kMost = 1e9;

}  // namespace

void SimulationFlags::declare(FlagTable* table) {
  table->begin_section(kSection);
  table->add("simulate", &simulate_,
             "Simulate steps of the run on clusters of --machine in several sizes, event by event: what "
             "every node computes, its collectives over a network of racks, slow nodes and failures.");
  table->add("nodes", &nodes_, "Numbers of nodes to simulate.").value_name = "N...";
  limit_flag(table->add("nodes_per_rack", &nodes_per_rack_,
                        "Nodes that share an uplink; without it no uplink limits anything."),
             1, kMaxSimulatedNodes);
  limit_flag(table->add("oversubscription", &oversubscription_,
                        "How many times as much the nodes of a rack can send as its uplink carries."),
             1, 1000);
  limit_flag(
      table->add(
          "flow_gbps", &flow_gbps_,
          "Most payload that one connection carries, in 10^9 bits per second: about 5 between AWS instances, "
          "10 "
          "within a placement group. No limit by default; a pair of nodes has --connections for each rank."),
      kLeast, kMost);
  limit_flag(
      table->add(
          "latency_us", &latency_us_,
          "Delay between the last byte sent and the receiver continuing, in microseconds; 100 unless the "
          "machine says otherwise."),
      0, kMost);
  limit_flag(table->add("message_us", &message_us_,
                        "Time that a core needs to send and receive one message, in microseconds."),
             0, kMost);
  table
      ->add("stragglers", &stragglers_,
            "Slow nodes as NODE:FACTOR, such as 3:1.5 for node 3, which computes 1.5 times as long.")
      .value_name = "NODE:FACTOR...";
  limit_flag(table->add("straggler_spread", &straggler_spread_,
                        "Relative spread of the nodes' compute times: log-normal, drawn with a fixed seed."),
             0, 1);
  table
      ->add("measured", &measured_,
            "Take the compute times of every rank from the metrics.jsonl of a run of this job, instead of "
            "the machine's rates; nodes that the run did not have compute like its median rank.")
      .value_name = "FILE";
  limit_flag(
      table->add("mtbf_hours", &mtbf_hours_,
                 "Mean time between failures of one node, in hours: adds how much of the time is useful."),
      kLeast, kMost);
  limit_flag(table->add("detection_s", &detection_s_, "Time until a failure is noticed, in seconds."), 0,
             kMost);
  limit_flag(table->add("restart_s", &restart_s_,
                        "Time from then until the first step from the checkpoint begins, in seconds."),
             0, kMost);
  limit_flag(table->add("checkpoint_steps", &checkpoint_steps_,
                        "Steps between two checkpoints; by default the best number."),
             1);
  limit_flag(
      table->add("checkpoint_stall_s", &checkpoint_stall_s_,
                 "How long a checkpoint holds up training, in seconds; by default the time to copy a node's "
                 "state in memory."),
      0, kMost);
  limit_flag(
      table->add(
          "checkpoint_write_s", &checkpoint_write_s_,
          "Time until a checkpoint is complete, in seconds; by default all nodes together write 1 GB/s."),
      0, kMost);
}

void SimulationFlags::check(const FlagTable& table) const {
  if (!simulate_) {
    for (const Flag& flag : table.flags()) {
      if (flag.section == kSection && table.is_set(flag.name) && flag.name != "simulate") {
        fail(ExitCode::kUsage, "--{} is for a simulation: add --simulate", flag.name);
      }
    }
    return;
  }
  for (const char* name :
       {"checkpoint_steps", "checkpoint_stall_s", "checkpoint_write_s", "detection_s", "restart_s"}) {
    if (table.is_set(name) && !mtbf_hours_) {
      fail(ExitCode::kUsage, "--{} is about failures: say how often with --mtbf_hours", name);
    }
  }
  if (table.is_set("nodes") && table.is_set("nnodes")) {
    fail(ExitCode::kUsage, "--nodes lists several clusters, --nnodes is one: give one of the two");
  }
  if (oversubscription_ > 1 && !nodes_per_rack_) {
    fail(ExitCode::kUsage,
         "--oversubscription is of the racks' uplinks: say how many nodes share one with --nodes_per_rack");
  }
}

std::vector<int> SimulationFlags::nodes(std::optional<int64_t> given) const {
  if (given) return {static_cast<int>(*given)};
  if (nodes_.empty() || nodes_.size() > kMaxClusters) {
    fail(ExitCode::kUsage, "--nodes: expected 1 to {} numbers, found {}", kMaxClusters, nodes_.size());
  }
  std::vector<int> nodes;
  for (const std::string& text : nodes_) {
    const int64_t count = parse_integer(text).value_or(0);
    if (count < 1 || count > kMaxSimulatedNodes) {
      fail(ExitCode::kUsage, "--nodes: expected numbers from 1 to {}, found '{}'", kMaxSimulatedNodes,
           printable(text));
    }
    nodes.push_back(static_cast<int>(count));
  }
  return nodes;
}

SimulationOptions SimulationFlags::options(int most_nodes) const {
  SimulationOptions options;
  options.nodes_per_rack = static_cast<int>(nodes_per_rack_.value_or(0));
  options.oversubscription = oversubscription_;
  options.flow_gbps = flow_gbps_;
  if (latency_us_) options.latency_s = 1e-6 * *latency_us_;
  options.message_s = 1e-6 * message_us_;
  options.spread = straggler_spread_;
  for (const std::string& text : stragglers_) {
    const std::vector<std::string> parts = split(text, ':');
    const int64_t node = parse_integer(parts.front()).value_or(-1);
    const double factor = parts.size() == 2 ? parse_number(parts.back()).value_or(0) : 0;
    if (node < 0 || !(factor > 0 && factor <= 1000)) {
      fail(ExitCode::kUsage, "--stragglers: expected NODE:FACTOR such as 3:1.5, found '{}'", printable(text));
    }
    if (node >= most_nodes) {
      fail(ExitCode::kUsage, "--stragglers: no cluster has a node {}: the largest has nodes 0 to {}", node,
           most_nodes - 1);
    }
    if (!options.slow_nodes.emplace(static_cast<int>(node), factor).second) {
      fail(ExitCode::kUsage, "--stragglers: node {} is given twice", node);
    }
  }
  if (!measured_.empty()) options.measured = read_measured_steps(measured_);
  if (mtbf_hours_) {
    options.failures = FailureFacts{
        .node_mtbf_s = 3600 * *mtbf_hours_, .detection_s = detection_s_, .restart_s = restart_s_};
  }
  options.checkpoint_stall_s = checkpoint_stall_s_;
  options.checkpoint_write_s = checkpoint_write_s_;
  options.checkpoint_steps = checkpoint_steps_;
  return options;
}

void SimulationFlags::simulate(const PlanRequest& request, const FlagTable& table) const {
  if (request.args.sharding.context_parallel_size > request.local_world_size) {
    fail(ExitCode::kUsage,
         "--simulate is of ranks that share rows within a node, and --context_parallel_size {} is more than "
         "its {}: without --simulate the plan has the step",
         request.args.sharding.context_parallel_size, format_count(request.local_world_size, "rank"));
  }
  const std::optional<int64_t> one_size =
      table.is_set("nnodes") ? std::optional(request.num_nodes) : std::nullopt;
  const std::vector<int> sizes = nodes(one_size);
  const SimulationOptions simulated = options(std::ranges::max(sizes));
  const ModelConfig config = request.model_config(table);
  std::optional<PlanMachine> machine;
  std::vector<SimulatedCluster> clusters;
  for (const int num_nodes : sizes) {
    RunSpec args = request.args;
    const int64_t world_size = num_nodes * request.local_world_size;
    if (!clusters.empty()) set_log_level(LogLevel::kError);  // it has been said
    resolve_run_spec(table, world_size, &args);
    if (!machine) machine = request.machine_for(args);
    if (!machine->cluster.rates) {
      fail(ExitCode::kUsage, "--simulate needs the speed of a machine: give --machine or --tflops");
    }
    clusters.push_back(simulate_cluster(args, config, request.cluster_of(*machine, num_nodes),
                                        request.threads_of_rank(*machine),
                                        job_size(args, config, world_size, request.tokens), simulated));
  }
  if (!request.plot.empty()) write_text_file(request.plot, simulation_picture(clusters));
  write_output(request.json ? simulation_json(clusters) : simulation_text(clusters));
  flush_output();
  if (std::ranges::none_of(clusters, &std::string::empty, &SimulatedCluster::refusal)) {
    fail(ExitCode::kBadConfig, "{}", clusters.back().refusal);
  }
}

}  // namespace tessera
