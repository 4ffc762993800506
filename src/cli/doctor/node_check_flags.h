// `tessera doctor --node-check`, and the medians of a fleet that it compares with.
#pragma once

#include <string>
#include <vector>

#include "cluster/node/node_check.h"

namespace tessera {

struct NodeCheckFlags {
  bool enabled = false;
  NodeCheckOptions options;  // without what is found by the other flags
  std::string fleet;
  std::string instance;
  std::vector<std::string> peers;
  std::string folder;
  std::vector<std::string> ignore;
  std::vector<std::string> fleet_from;
};

// Checks this machine, prints a table or JSON, and ends with ResultCode unless it is healthy.
void run_node_check(const NodeCheckFlags& flags, bool json);
// Prints the medians of the reports in flags.fleet_from.
void run_fleet_from(const NodeCheckFlags& flags);

}  // namespace tessera
