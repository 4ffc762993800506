// `tessera doctor --node-check`, and the medians of a fleet that it compares with.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/flags.h"

namespace tessera {

struct NodeCheckFlags {
  bool enabled = false;
  bool passive = false;
  std::string fleet;
  std::string instance;
  double min_share = 0.8;
  std::string instruction_set;
  int64_t num_cards = 0;
  std::vector<std::string> peers;
  std::string folder;
  std::vector<std::string> ignore;
  std::vector<std::string> fleet_from;
};

void declare_node_check_flags(FlagTable* table, NodeCheckFlags* flags);

// Checks this machine within about `seconds`, prints a table or JSON, and ends with ResultCode unless it is
// healthy.
void run_node_check(const NodeCheckFlags& flags, double seconds, bool json);
// Prints the medians of the reports in flags.fleet_from.
void run_fleet_from(const NodeCheckFlags& flags);

}  // namespace tessera
