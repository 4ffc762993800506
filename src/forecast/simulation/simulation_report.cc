#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "base/text.h"
#include "forecast/simulation/simulation.h"
#include "forecast/text/plan_text.h"

namespace tessera {
namespace {

std::string bytes_text(double bytes) { return bytes > 0 ? format_bytes(std::llround(bytes)) : "-"; }

std::string percent(double share) { return fmt::format("{:.1f}", 100 * share); }

std::string useful_text(const SimulatedCluster& cluster) {
  const UsefulTime& useful = *cluster.useful;
  const FailureInputs& inputs = *cluster.failures;
  std::string text =
      fmt::format("{:>5}  {:>9}  {:>7}  {:>8}  {:>11}  {:>8}  {:>8}\n", cluster.num_nodes,
                  three_digits(useful.failure_s / 3600), percent(useful.useful_share),
                  format_count(useful.checkpoint_steps), three_digits(useful.repeated_steps),
                  three_digits(inputs.checkpoint_stall_s), three_digits(inputs.checkpoint_write_s));
  if (cluster.best_useful) {
    text += fmt::format("{:>5}  {:>9}  {:>7}  {:>8}  {:>11}\n", "", "best",
                        percent(cluster.best_useful->useful_share),
                        format_count(cluster.best_useful->checkpoint_steps),
                        three_digits(cluster.best_useful->repeated_steps));
  }
  return text;
}

nlohmann::ordered_json useful_json(const UsefulTime& useful) {
  return {{"checkpoint_steps", useful.checkpoint_steps},
          {"useful_share", useful.useful_share},
          {"failure_s", useful.failure_s},
          {"repeated_steps", useful.repeated_steps}};
}

nlohmann::ordered_json cluster_json(const SimulatedCluster& cluster) {
  nlohmann::ordered_json json = {
      {"nodes", cluster.num_nodes},
      {"racks", cluster.num_racks},
      {"fits", cluster.refusal.empty()},
      {"tokens_per_step", cluster.tokens_per_step},
      {"step_s", cluster.step.step_s},
      {"ideal_s", cluster.ideal_s},
      {"tokens_per_s", cluster.tokens_per_s()},
      {"efficiency", cluster.efficiency()},
      {"bottleneck", bottleneck_name(cluster.step.bottleneck())},
      {"network_s", cluster.step.network_s},
      {"node_sent_bytes", cluster.step.node_sent_bytes},
      {"uplink_sent_bytes", cluster.step.uplink_sent_bytes},
      {"every_node_simulated", cluster.step.is_exact},
  };
  for (int kind = 0; kind < kNumBottlenecks; ++kind) {
    const auto bottleneck = static_cast<Bottleneck>(kind);
    json["seconds"][std::string(bottleneck_name(bottleneck))] = cluster.step.of(bottleneck);
  }
  if (!cluster.refusal.empty()) json["refusal"] = cluster.refusal;
  if (cluster.useful) {
    json["useful"] = useful_json(*cluster.useful);
    json["checkpoint_stall_s"] = cluster.failures->checkpoint_stall_s;
    json["checkpoint_write_s"] = cluster.failures->checkpoint_write_s;
  }
  if (cluster.best_useful) json["best_useful"] = useful_json(*cluster.best_useful);
  return json;
}

}  // namespace

std::string simulation_text(const std::vector<SimulatedCluster>& clusters) {
  std::string text = "nodes  racks  step s  tokens/s  efficiency  sent a node  rack uplink  limit\n";
  bool all_exact = true;
  for (const SimulatedCluster& cluster : clusters) {
    all_exact &= cluster.step.is_exact;
    text +=
        fmt::format("{:>5}{} {:>5}  {:>6}  {:>8}  {:>8} %  {:>11}  {:>11}  {}\n", cluster.num_nodes,
                    cluster.refusal.empty() ? " " : "*", cluster.num_racks, three_digits(cluster.step.step_s),
                    three_digits(cluster.tokens_per_s()), percent(cluster.efficiency()),
                    bytes_text(cluster.step.node_sent_bytes), bytes_text(cluster.step.uplink_sent_bytes),
                    bottleneck_name(cluster.step.bottleneck()));
  }
  text += "\nwhat a node's time goes to, in % of the step; all but computation is waiting\nnodes";
  for (int kind = 0; kind < kNumBottlenecks; ++kind) {
    text += fmt::format("{:>{}}", bottleneck_name(static_cast<Bottleneck>(kind)), kind == 0 ? 9 : 11);
  }
  text += "\n";
  for (const SimulatedCluster& cluster : clusters) {
    text += fmt::format("{:>5}", cluster.num_nodes);
    for (int kind = 0; kind < kNumBottlenecks; ++kind) {
      text += fmt::format("{:>{}}", percent(cluster.step.seconds[kind] / cluster.step.step_s),
                          kind == 0 ? 9 : 11);
    }
    text += "\n";
  }
  if (clusters.front().useful) {
    text +=
        "\nfailures: hours between two of the job; useful time in %; steps between two\n"
        "checkpoints; steps repeated after a failure; seconds to begin and to write one\n"
        "nodes      hours   useful     steps     repeated     stall     write\n";
    for (const SimulatedCluster& cluster : clusters) text += useful_text(cluster);
  }
  if (!all_exact) {
    text += "\nLarge clusters of unequal nodes: groups of similar speed, spread over the racks.\n";
  }
  for (const SimulatedCluster& cluster : clusters) {
    if (!cluster.refusal.empty()) {
      text += "\n" + wrapped("*",
                             split(fmt::format("does not fit into memory; with {}: {}",
                                               format_count(cluster.num_nodes, "node"), cluster.refusal),
                                   ' '),
                             /*indent=*/2);
      break;
    }
  }
  return text;
}

std::string simulation_json(const std::vector<SimulatedCluster>& clusters) {
  nlohmann::ordered_json json;
  for (const SimulatedCluster& cluster : clusters) json["clusters"].push_back(cluster_json(cluster));
  return json.dump(2) + "\n";
}

}  // namespace tessera
