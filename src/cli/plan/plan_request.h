// What `tessera plan` is asked, whichever of its answers it gives: the run, the machine, how to show it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/flags.h"
#include "cli/plan/plan_machine.h"
#include "formats/huggingface/model_config.h"
#include "settings/run_settings.h"

namespace tessera {

struct PlanRequest {
  RunSpec args;
  std::vector<const Flag*> given;  // flags of `tessera train` on the command line
  std::string preset;
  int64_t vocab_size = 32000;
  std::optional<int64_t> tokens;
  bool json = false;
  std::string plot;

  PlanMachineFlags machine;
  int64_t num_nodes = 1;
  int64_t local_world_size = 1;

  // The shape of the model, with adapters and their base's form. Error(kUsage) unless it is named once.
  ModelConfig model_config(const FlagTable& table) const;
  // Measures this machine if it has to. `resolved` for the ranks of the run.
  PlanMachine machine_for(const RunSpec& resolved) const;
  int64_t threads_of_rank(const PlanMachine& on) const;
  ClusterShape cluster_of(const PlanMachine& on, int64_t nodes) const;
};

}  // namespace tessera
