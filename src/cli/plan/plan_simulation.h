// The flags of `tessera plan --simulate`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/flags.h"
#include "cli/plan/plan_request.h"
#include "forecast/simulation/simulation.h"

namespace tessera {

class SimulationFlags {
 public:
  // As a section of its own.
  void declare(FlagTable* table);
  // Error(kUsage) for values that make no sense, or for flags of this section without --simulate.
  void check(const FlagTable& table) const;

  bool is_wanted() const { return simulate_; }
  // Simulates and shows the clusters. Error(kBadConfig) if the run fits into none.
  void simulate(const PlanRequest& request, const FlagTable& table) const;

 private:
  // Numbers of nodes; `given` with --nnodes alone.
  std::vector<int> nodes(std::optional<int64_t> given) const;
  // For clusters of at most so many nodes. Reads --measured.
  SimulationOptions options(int most_nodes) const;

  bool simulate_ = false;
  std::vector<std::string> nodes_ = {"4", "16", "64", "256", "1024"};
  std::optional<int64_t> nodes_per_rack_;
  double oversubscription_ = 1;
  std::optional<double> flow_gbps_;
  std::optional<double> latency_us_;
  double message_us_ = 10;
  std::vector<std::string> stragglers_;
  double straggler_spread_ = 0;
  std::string measured_;
  std::optional<double> mtbf_hours_;
  double detection_s_ = 5;
  double restart_s_ = 120;
  std::optional<int64_t> checkpoint_steps_;
  std::optional<double> checkpoint_stall_s_;
  std::optional<double> checkpoint_write_s_;
};

}  // namespace tessera
