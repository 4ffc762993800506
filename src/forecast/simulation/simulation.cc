#include "forecast/simulation/simulation.h"

#include <algorithm>
#include <sstream>

#include "base/error.h"
#include "base/median.h"
#include "forecast/time/planned_step.h"
#include "formats/json.h"
#include "io/file.h"
#include "plan/planned_model.h"

namespace tessera {
namespace {

// Seconds of a core that does nothing else, for both directions of a payload byte: docs/performance.md,
// "Collectives between nodes", where two cores carry both ends.
constexpr double kGatherByteS = 8 / 21.8e9;
constexpr double kReduceByteS = 8 / 15.4e9;
constexpr uint64_t kSeed = 1;

class ClusterSimulator {
 public:
  ClusterSimulator(const RunSpec& spec, const ModelConfig& config, const ClusterShape& cluster,
                   int64_t num_threads, const std::optional<JobSize>& job, const SimulationOptions& options)
      : spec_(spec),
        cluster_(cluster),
        options_(options),
        planned_(config, spec.precision.dtype, num_threads, cluster.ops, spec.sharding.context_parallel_size),
        walks_(config, spec.precision.dtype),
        max_row_tokens_(job ? job->max_row_tokens : spec.data.row_limit(config)),
        row_tokens_(job ? job->mean_row_tokens : max_row_tokens_),
        step_(spec, *planned_.model, cluster.num_nodes, cluster.local_world_size, num_threads,
              max_row_tokens_),
        of_rates_(*cluster.rates) {}

  SimulatedCluster run() {
    SimulatedCluster result;
    const MachineResources machine = step_.machine(cluster_.node_memory_bytes);
    const MemoryRequest request = step_.planner().choose_memory(machine);
    result.refusal = step_.planner().refusal(request, machine);
    result.num_nodes = cluster_.num_nodes;
    result.tokens_per_step = step_.step_rows() * row_tokens_;
    StepInputs inputs = step_.inputs(request, row_tokens_);
    inputs.zero.weight_dtype = walks_.dtype();
    inputs.zero.passes_per_step = inputs.num_passes;
    result.zero = inputs.zero;

    const ZeroLayout layout = zero_layout(walks_.layout(), cluster_.num_nodes, cluster_.local_world_size);
    const StepCosts costs = step_costs(walks_, inputs, op_costs());
    const Topology topology = topology_of();
    result.num_racks = topology.num_racks();
    std::vector<Timed> steps;
    if (options_.measured.empty()) steps.push_back(simulate(topology, layout, inputs, costs, slowdowns()));
    for (const MeasuredStep& measured : options_.measured) {
      steps.push_back(simulate(topology, layout, inputs, replaced(layout, inputs, costs, measured),
                               slowdowns_of(measured)));
    }
    const auto middle = steps.begin() + std::ssize(steps) / 2;
    std::ranges::nth_element(steps, middle, {}, [](const Timed& timed) { return timed.step.step_s; });
    result.step = middle->step;
    result.ideal_s = middle->ideal_s;
    if (options_.failures) add_failures(&result);
    return result;
  }

 private:
  struct Timed {
    SimulatedStep step;
    double ideal_s;
  };

  Timed simulate(const Topology& topology, const ZeroLayout& layout, const StepInputs& inputs,
                 const StepCosts& costs, const std::vector<double>& slowdowns) const {
    const StepProgram program = program_of(layout, inputs, costs);
    Timed timed = {simulate_steps(topology, program, slowdowns), program.last_compute_s() + costs.other_s};
    const std::vector<double> equal(slowdowns.size(), 1.0);
    if (slowdowns == equal) return timed;
    // Waiting for a slow node may look like waiting for the network, whose work it delays.
    const SimulatedStep with_equal = simulate_steps(topology, program, equal);
    // Nodes that are not in step with one another may have more of an uplink than equal ones.
    if (timed.step.step_s < with_equal.step_s) return timed;
    std::ranges::copy(with_equal.seconds, timed.step.seconds);
    timed.step.seconds[static_cast<int>(Bottleneck::kOthers)] += timed.step.step_s - with_equal.step_s;
    return timed;
  }

  OpCosts& op_costs() { return cluster_.op_costs != nullptr ? *cluster_.op_costs : of_rates_; }
  StepProgram program_of(const ZeroLayout& layout, const StepInputs& inputs, const StepCosts& costs) const {
    return step_program(layout, inputs.zero, costs, walks_.config().tie_word_embeddings,
                        static_cast<int>(spec_.network.connections));
  }

  // Uses the times of a measured step: its median rank's, as slowdowns_of() covers the others.
  StepCosts replaced(const ZeroLayout& layout, const StepInputs& inputs, StepCosts costs,
                     const MeasuredStep& measured) const {
    double update_s = 0;
    for (const double seconds : costs.update_s) update_s += seconds;
    const double passes_s = program_of(layout, inputs, costs).last_compute_s() - update_s;
    costs.scale_passes(median(measured.rank_compute_s) / passes_s);
    costs.set_update(measured.update_s);
    costs.other_s = measured.other_s;
    return costs;
  }

  std::vector<double> slowdowns() const {
    std::vector<double> all = drawn_slowdowns(cluster_.num_nodes, options_.spread, kSeed);
    for (const auto& [node, factor] : options_.slow_nodes) {
      if (node < cluster_.num_nodes) all[static_cast<size_t>(node)] *= factor;
    }
    return all;
  }
  // A node is as slow as its slowest rank; nodes that the run did not have are like its median rank.
  std::vector<double> slowdowns_of(const MeasuredStep& measured) const {
    std::vector<double> all = slowdowns();
    const std::vector<double>& ranks = measured.rank_compute_s;
    const double typical = median(ranks);
    const auto local = static_cast<size_t>(cluster_.local_world_size);
    for (size_t node = 0; node < all.size() && (node + 1) * local <= ranks.size(); ++node) {
      const auto first = ranks.begin() + static_cast<int64_t>(node * local);
      all[node] *= *std::max_element(first, first + static_cast<int64_t>(local)) / typical;
    }
    return all;
  }

  Topology topology_of() const {
    const MachineRates& rates = *cluster_.rates;
    Topology topology;
    topology.num_nodes = cluster_.num_nodes;
    topology.nodes_per_rack = options_.nodes_per_rack > 0
                                  ? std::min(options_.nodes_per_rack, cluster_.num_nodes)
                                  : cluster_.num_nodes;
    topology.nic_bytes_per_s = cluster_.network_gbps / 8 * 1e9 * rates.network_efficiency;
    topology.oversubscription = options_.oversubscription;
    topology.connections = static_cast<int>(spec_.network.connections) * cluster_.local_world_size;
    if (options_.flow_gbps) topology.flow_bytes_per_s = *options_.flow_gbps / 8 * 1e9;
    topology.latency_s = options_.latency_s.value_or(rates.network_latency_s);
    topology.message_s = options_.message_s;
    topology.gather_byte_s = kGatherByteS;
    topology.reduce_byte_s = kReduceByteS;
    topology.num_threads = static_cast<double>(std::min<int64_t>(topology.connections, rates.num_cores));
    return topology;
  }

  void add_failures(SimulatedCluster* result) const {
    FailureInputs inputs = *options_.failures;
    const DiskPlan disk = plan_disk(
        walks_.layout(), {spec_.precision.export_dtype(), saved_tensors(result->zero, cluster_.num_nodes)},
        /*count=*/{});
    const double node_bytes = static_cast<double>(disk.checkpoint_bytes) / cluster_.num_nodes;
    // The state is read and written once.
    inputs.checkpoint_stall_s =
        options_.checkpoint_stall_s.value_or(2 * node_bytes / (cluster_.rates->memory_gb_per_s * 1e9));
    inputs.checkpoint_write_s =
        options_.checkpoint_write_s.value_or(static_cast<double>(disk.checkpoint_bytes) / kStorageBytesPerS);
    result->failures = inputs;
    result->useful = best_useful_time(inputs, cluster_.num_nodes, result->step.step_s);
    if (!options_.checkpoint_steps) return;
    result->best_useful = result->useful;
    result->useful = useful_time(inputs, cluster_.num_nodes, result->step.step_s, *options_.checkpoint_steps);
  }

  const RunSpec& spec_;
  const ClusterShape& cluster_;
  const SimulationOptions& options_;
  PlannedModel planned_;
  StepWalks walks_;
  int64_t max_row_tokens_;
  int64_t row_tokens_;
  PlannedStep step_;
  RatedCosts of_rates_;
};

}  // namespace

std::vector<MeasuredStep> read_measured_steps(const std::string& metrics_path) {
  constexpr int64_t kWarmUpSteps = 2;
  constexpr size_t kMaxSteps = 200;
  std::istringstream lines(read_text_file(metrics_path));
  std::vector<MeasuredStep> steps;
  int64_t number = 0;
  for (std::string line; std::getline(lines, line);) {
    if (++number <= kWarmUpSteps) continue;
    const std::string origin = fmt::format("{}:{}", metrics_path, number);
    const Json document = parse_json(line, origin);
    const JsonNode step(document, origin);
    MeasuredStep measured;
    double mean_s = 0;
    const std::vector<JsonNode> ranks = step["rank_compute_s"].list();
    for (const JsonNode& rank : ranks) {
      if (!(rank.number() > 0)) rank.expected("a number above 0");
      measured.rank_compute_s.push_back(rank.number());
      mean_s += rank.number() / static_cast<double>(ranks.size());
    }
    if (ranks.empty()) step["rank_compute_s"].expected("the seconds of each rank");
    measured.update_s = std::max(0.0, step["time_optimizer_s"].number());
    const double listed_s = mean_s + measured.update_s + step["time_wait_s"].number();
    measured.other_s = std::max(0.0, step["step_time_s"].number() - listed_s);
    if (steps.size() == kMaxSteps) steps.erase(steps.begin());
    steps.push_back(std::move(measured));
  }
  if (steps.empty()) fail(ExitCode::kBadData, "{}: expected more than {} steps", metrics_path, kWarmUpSteps);
  return steps;
}

SimulatedCluster simulate_cluster(const RunSpec& spec, const ModelConfig& config, const ClusterShape& cluster,
                                  int64_t num_threads, const std::optional<JobSize>& job,
                                  const SimulationOptions& options) {
  TESSERA_CHECK(cluster.rates.has_value(), "a simulation needs the machine's rates");
  return ClusterSimulator(spec, config, cluster, num_threads, job, options).run();
}

}  // namespace tessera
