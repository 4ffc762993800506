// The machine that `tessera plan` and `tessera simulate` ask about: this one, an instance type, or one whose
// rates a file states.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "forecast/forecast.h"
#include "forecast/time/measured_costs.h"
#include "settings/run_settings.h"

namespace tessera {

struct PlanMachineFlags {
  std::string machine;  // "here", an instance type, a file of rates, "" = this machine's peak
  std::string catalogue;
  std::optional<int64_t> memory_bytes;
  std::optional<double> network_gbps;
  std::string network;  // a file of bench network, "" = none
  std::optional<double> disk_gb_per_s;
  std::optional<double> tflops;
  std::optional<double> mfu;

  bool name_this_machine() const { return machine.empty() || machine == "here"; }
};

struct PlanMachine {
  ClusterShape cluster;  // but for the number of nodes and ranks
  int64_t num_cores = 1;
  std::unique_ptr<MeasuredCosts> op_costs;  // of the cluster, if they are measured
};

// Measures this machine if it has to. `threads_here`: those that a run starts on this machine, if it is
// named. Error(kUsage) for flags that contradict each other.
PlanMachine plan_machine(const PlanMachineFlags& flags, const RunSpec& spec, int64_t threads_here);

}  // namespace tessera
