// `tessera simulate`: what a job does on clusters of several sizes.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "forecast/forecast.h"
#include "forecast/simulation/cluster_simulation.h"
#include "forecast/simulation/failures.h"

namespace tessera {

// Measured times of a run's step, in place of costs by rates.
struct MeasuredStep {
  std::vector<double> rank_compute_s;  // by rank, of the passes
  double update_s = 0;
  double other_s = 0;
};

// The steps but the first two in metrics.jsonl of a run on several ranks, at most the last 200.
// Error(kBadData) naming the file, the line and what is missing.
std::vector<MeasuredStep> read_measured_steps(const std::string& metrics_path);

struct SimulationOptions {
  int nodes_per_rack = 0;  // 0: all in one
  double oversubscription = 1;
  std::optional<double> flow_gbps;  // payload of one connection
  std::optional<double> latency_s;  // instead of the machine's
  double message_s = 10e-6;
  std::map<int, double> slow_nodes;  // by node: how many times as long it computes
  double spread = 0;                 // of the nodes' slowdowns (topology.h)
  // If there are any, each is simulated, and the one with the median step time counts.
  std::vector<MeasuredStep> measured;
  std::optional<FailureInputs> failures;     // with the checkpoint's times, if they are given
  std::optional<double> checkpoint_stall_s;  // otherwise from the state's size and the machine's memory
  std::optional<double> checkpoint_write_s;  // otherwise from its size and kStorageBytesPerS
  std::optional<int64_t> checkpoint_steps;   // otherwise the best number
};

// Write rate of all nodes together to shared storage, unless the time of a checkpoint is given.
inline constexpr double kStorageBytesPerS = 1e9;

struct SimulatedCluster {
  int num_nodes = 1;
  int num_racks = 1;
  int64_t tokens_per_step = 0;
  ZeroSettings zero;
  std::string refusal;  // why the run does not fit into the nodes' memory; empty if it fits
  // Seconds by kind are for a cluster of equal nodes; kOthers is the time that slow nodes add.
  SimulatedStep step;
  double ideal_s = 0;  // a step without waiting for network or slower nodes
  std::optional<FailureInputs> failures;
  std::optional<UsefulTime> useful;       // with the given number of steps between checkpoints, or the best
  std::optional<UsefulTime> best_useful;  // only with a given number

  double tokens_per_s() const { return static_cast<double>(tokens_per_step) / step.step_s; }
  double efficiency() const { return ideal_s / step.step_s; }
};

// `spec` must be resolved for the cluster's ranks; the cluster has rates.
SimulatedCluster simulate_cluster(const RunSpec& spec, const ModelConfig& config, const ClusterShape& cluster,
                                  int64_t num_threads, const std::optional<JobSize>& job,
                                  const SimulationOptions& options);

// A line for each cluster, what limits it and what its time goes to; at most 80 columns.
std::string simulation_text(const std::vector<SimulatedCluster>& clusters);
// The results as a JSON object, indent 2, trailing newline.
std::string simulation_json(const std::vector<SimulatedCluster>& clusters);
// SVG: the parts of a node's time by the number of nodes, and useful time over the checkpoint interval.
std::string simulation_picture(const std::vector<SimulatedCluster>& clusters);

}  // namespace tessera
