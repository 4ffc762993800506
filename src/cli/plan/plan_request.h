// The commands that plan a run share this: the run, the machine, how to show the plan.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/flags.h"
#include "cli/command.h"
#include "forecast/instances/layout_flags.h"
#include "forecast/instances/planned_machine.h"
#include "formats/huggingface/model_config.h"
#include "settings/run_settings.h"

namespace tessera {

struct PlanRequest {
  RunSettings given;                   // by flags and files
  std::vector<GivenFlag> given_flags;  // those of `tessera train` on the command line
  std::string preset;
  int64_t vocab_size = 32000;
  std::optional<int64_t> tokens;
  bool json = false;

  PlanMachineFlags machine;
  int64_t num_nodes = 1;
  int64_t local_world_size = 1;

  // A run on a card is one rank's, on one node. Error(kUsage) for flags that say otherwise.
  void check_device_flags(const FlagTable& table) const;
  bool is_on_device() const { return given.machine.device != DeviceKind::kCpu; }
  int64_t world_size() const { return num_nodes * local_world_size; }
  // The shape of the model, with adapters and their base's form. Error(kUsage) unless it is named once.
  ModelConfig model_config(const FlagTable& table) const;
  // Both return job_size(); job_or_assumed() falls back to assumed_job() if the run's length is not set.
  std::optional<JobSize> job(const RunSpec& spec, const ModelConfig& config, int64_t ranks) const;
  JobSize job_or_assumed(const RunSpec& spec, const ModelConfig& config, int64_t ranks) const;
  // Measures this machine if it has to.
  PlanMachine machine_for(const RunSpec& spec) const;
  int64_t threads_of_rank(const PlanMachine& on) const;
  ClusterShape cluster_of(const PlanMachine& on, int64_t nodes) const;
};

class PlanningCommand : public Command {
 public:
  void complete_flags(FlagTable* table) override;
  bool reads_weights() const override { return false; }
  DataArguments* data_arguments() override { return request_.tokens ? nullptr : &request_.given.data; }
  void on_hub_names(const std::string& flag, const std::vector<std::string>& names) override {
    request_.given.model.hub_names[flag] = names.at(0);
  }

 protected:
  // The flags of `tessera train`, of which those that matter are listed, and the size of the job.
  void declare_run(FlagTable* table);
  void declare_machine(FlagTable* table);
  void declare_ranks(FlagTable* table);

  PlanRequest request_;

 private:
  size_t num_training_flags_ = 0;
};

}  // namespace tessera
