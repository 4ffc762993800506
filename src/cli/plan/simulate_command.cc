#include <algorithm>
#include <optional>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "cli/command.h"
#include "cli/plan/plan_request.h"
#include "cli/terminal/terminal.h"
#include "forecast/simulation/simulation.h"
#include "io/file.h"

namespace tessera {
namespace {

constexpr int kMaxSimulatedNodes = 4096;
constexpr size_t kMaxClusters = 20;

class SimulateCommand : public PlanningCommand {
 public:
  std::string name() const override { return "simulate"; }

  void declare_flags(FlagTable* table) override {
    declare_run(table);
    declare_machine(table);
    declare_ranks(table);
    declare_cluster(table);
    declare_failures(table);
  }

  void run(FlagTable* table) override {
    set_log_level(request_.given.reporting.lowest_log_level());
    if (request_.is_on_device()) {
      fail(ExitCode::kUsage, "--device {} is not available here: a run on a card is one rank's, on one node",
           request_.given.machine.device);
    }
    check_contradictions(*table);
    if (request_.given.sharding.context_parallel_size > request_.local_world_size) {
      fail(ExitCode::kUsage,
           "simulated ranks share rows within a node, and --context_parallel_size {} is more than "
           "its {}: tessera plan has the step",
           request_.given.sharding.context_parallel_size, format_count(request_.local_world_size, "rank"));
    }
    const std::vector<int> sizes = nodes(*table);
    const SimulationOptions simulated = options(std::ranges::max(sizes));
    const ModelConfig config = request_.model_config(*table);
    std::optional<PlanMachine> machine;
    std::vector<SimulatedCluster> clusters;
    for (const int num_nodes : sizes) {
      const int64_t world_size = num_nodes * request_.local_world_size;
      if (!clusters.empty()) set_log_level(LogLevel::kError);  // it has been said
      const RunSpec spec = read_run_spec(*table, request_.given, world_size);
      if (!machine) machine = request_.machine_for(spec);
      if (!machine->cluster.rates) {
        fail(ExitCode::kUsage, "a simulation needs the speed of a machine: give --machine or --tflops");
      }
      clusters.push_back(simulate_cluster(spec, config, request_.cluster_of(*machine, num_nodes),
                                          request_.threads_of_rank(*machine),
                                          request_.job(spec, config, world_size), simulated));
    }
    if (!plot_.empty()) write_text_file(plot_, simulation_picture(clusters));
    write_output(request_.json ? simulation_json(clusters) : simulation_text(clusters));
    flush_output();
    if (std::ranges::none_of(clusters, &std::string::empty, &SimulatedCluster::refusal)) {
      fail(ExitCode::kBadConfig, "{}", clusters.back().refusal);
    }
  }

 private:
  void declare_cluster(FlagTable* table) {
    table->begin_section("Cluster");
    declare(table, "nodes", &nodes_);
    declare(table, "nodes_per_rack", &nodes_per_rack_);
    declare(table, "oversubscription", &options_.oversubscription);
    declare(table, "flow_gbps", &options_.flow_gbps);
    declare(table, "latency_us", &latency_us_);
    declare(table, "message_us", &message_us_);
    declare(table, "stragglers", &stragglers_);
    declare(table, "straggler_spread", &options_.spread);
    declare(table, "measured", &measured_);
    declare(table, "plot", &plot_);
  }

  void declare_failures(FlagTable* table) {
    table->begin_section("Failures");
    declare(table, "mtbf_hours", &mtbf_hours_);
    declare(table, "detection_s", &failures_.detection_s);
    declare(table, "restart_s", &failures_.restart_s);
    declare(table, "checkpoint_steps", &options_.checkpoint_steps);
    declare(table, "checkpoint_stall_s", &options_.checkpoint_stall_s);
    declare(table, "checkpoint_write_s", &options_.checkpoint_write_s);
  }

  // Error(kUsage) for values that make no sense together.
  void check_contradictions(const FlagTable& table) const {
    for (const char* name :
         {"checkpoint_steps", "checkpoint_stall_s", "checkpoint_write_s", "detection_s", "restart_s"}) {
      if (table.is_set(name) && !mtbf_hours_) {
        fail(ExitCode::kUsage, "--{} is about failures: say how often with --mtbf_hours", name);
      }
    }
    if (table.is_set("nodes") && table.is_set("nnodes")) {
      fail(ExitCode::kUsage, "--nodes lists several clusters, --nnodes is one: give one of the two");
    }
    if (options_.oversubscription > 1 && !nodes_per_rack_) {
      fail(ExitCode::kUsage,
           "--oversubscription is of the racks' uplinks: say how many nodes share one with --nodes_per_rack");
    }
  }

  // Numbers of nodes.
  std::vector<int> nodes(const FlagTable& table) const {
    if (table.is_set("nnodes")) return {static_cast<int>(request_.num_nodes)};
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

  // `most_nodes`: of the largest cluster. Reads --measured.
  SimulationOptions options(int most_nodes) const {
    SimulationOptions options = options_;
    options.nodes_per_rack = static_cast<int>(nodes_per_rack_.value_or(0));
    if (latency_us_) options.latency_s = 1e-6 * *latency_us_;
    options.message_s = 1e-6 * message_us_;
    for (const std::string& text : stragglers_) {
      const std::vector<std::string> parts = split(text, ':');
      const int64_t node = parse_integer(parts.front()).value_or(-1);
      const double factor = parts.size() == 2 ? parse_number(parts.back()).value_or(0) : 0;
      if (node < 0 || !(factor > 0 && factor <= 1000)) {
        fail(ExitCode::kUsage, "--stragglers: expected NODE:FACTOR such as 3:1.5, found '{}'",
             printable(text));
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
      options.failures = failures_;
      options.failures->node_mtbf_s = 3600 * *mtbf_hours_;
    }
    return options;
  }

  SimulationOptions options_;  // what flags say of them
  FailureInputs failures_;
  std::vector<std::string> nodes_ = {"4", "16", "64", "256", "1024"};
  std::optional<int64_t> nodes_per_rack_;
  std::optional<double> latency_us_;
  double message_us_ = 10;
  std::vector<std::string> stragglers_;
  std::string measured_;
  std::optional<double> mtbf_hours_;
  std::string plot_;
};

}  // namespace

std::unique_ptr<Command> make_simulate_command() { return std::make_unique<SimulateCommand>(); }

}  // namespace tessera
