// Reports a network's matrix: tables for people, JSON for programs, and which link or node to look at.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cluster/network/network_matrix.h"

namespace tessera {

struct NetworkLimits {
  double min_share = 0.6;     // of the typical link
  double min_gbit_per_s = 0;  // of any link
};

struct NetworkFinding {
  std::string kind;  // "unreachable", "slow_node", "slow_link", "slow_node_latency", "slow_link_latency"
  int from = -1;     // node; -1: every other one
  int to = -1;
  double value = 0;
  double typical = 0;
  std::string message;  // one line
};

// Unreachable links first, then slow nodes, links and latencies, worst first. A latency is slow from three
// times the typical one and half a millisecond on.
std::vector<NetworkFinding> judge_network(const NetworkMatrix& matrix, const NetworkLimits& limits);

// At most 80 columns. With many nodes a line for each node instead of a column.
std::string network_text(const NetworkMatrix& matrix, const std::vector<NetworkFinding>& findings);
nlohmann::ordered_json network_json(const NetworkMatrix& matrix, const std::vector<NetworkFinding>& findings);

}  // namespace tessera
