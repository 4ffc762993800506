// Plans a run from its settings, the model's shape, the lengths of rows and the machine: how many
// micro-batches go through the model at once, how parameters are sharded, what is kept packed, and how much
// memory that takes. The same inputs give the same plan: nothing here asks the clock, a disk or another rank.
// `train` executes the plan and `tessera plan` prints it.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "data/rows/batch_plan.h"
#include "plan/run_plan.h"
#include "settings/run_settings.h"

namespace tessera {

struct RowLengths {
  int64_t max_row_length = 0;       // tokens
  int64_t max_eval_row_length = 0;  // 0: no evaluation
  // Tokens of the largest pass of the run when this many micro-batches are merged into one.
  std::function<int64_t(int64_t micro_batches_per_pass)> largest_pass;
};
// Every row has row_tokens tokens.
RowLengths uniform_rows(int64_t row_tokens, int64_t micro_batch_rows);

struct MachineResources {
  int num_nodes = 1;
  int local_world_size = 1;
  int64_t num_threads = 1;          // of a rank
  int64_t free_bytes = 0;           // of a node, beyond the baseline of its ranks; or of the model's device
  int64_t host_free_bytes = 0;      // of a node, if free_bytes is of the model's device
  int64_t baseline_bytes = 0;       // of a rank, resident before the model is allocated
  bool first_rank_exports = false;  // the nodes share no folder
  bool has_disk = true;             // for state and weights that leave memory
};

struct PlanInputs {
  const RunSpec& spec;  // resolved
  const TrainableModel& model;
  const BatchPlanOptions& batch;
  const RowLengths& data;
  const MachineResources& machine;  // all ranks must give the same free memory
};
// Fills passes, sharding and memory of a plan, and its refusal if the machine has too little memory; the rest
// stays as it is in `known`. Error(kBadConfig) for settings that the model or the machine rules out.
RunPlan plan_run(const PlanInputs& inputs, RunPlan known = {});

// Has `machine`, filled in for a model on the host, say what is free on the model's device, for each of the
// ranks that share it, if that has memory of its own.
void take_device_memory(const Device& device, MachineResources* machine);

class RunPlanner {
 public:
  // Decides how many micro-batches make up a pass. `spec` must be resolved; spec and model must outlive this.
  RunPlanner(const RunSpec& spec, const TrainableModel& model, const BatchPlanOptions& batch,
             RowLengths data);

  int64_t micro_batches_per_pass() const { return micro_batches_per_pass_; }
  int64_t max_pass_tokens() const { return max_pass_tokens_; }  // of ranks that share rows together

  // On the disk of a rank, with gradient_checkpointing_mode offload.
  int64_t offloaded_input_bytes() const;

  // gather_schedule auto becomes per_layer if per_step does not fit; of state on a disk as much of a layer is
  // read ahead as then fits; pack_weights auto packs if that fits, too; selective checkpointing keeps as many
  // outputs as then fit.
  // Error(kBadConfig) for packed weights that the sharding rules out.
  MemoryRequest choose_memory(const MachineResources& machine) const;
  // Chooses with the schedule given, or with every sharding setting given.
  MemoryRequest choose_memory(const MachineResources& machine, GatherSchedule schedule) const;
  MemoryRequest choose_memory(const MachineResources& machine, const ZeroSettings& zero) const;
  // Fills limits, zero, snapshot_bytes, memory, wire and free_bytes from a request that was chosen.
  void fill_memory(const MemoryRequest& request, const MachineResources& machine, RunPlan* plan) const;
  // Why the request does not fit and what would; "" if it fits.
  std::string refusal(const MemoryRequest& request, const MachineResources& machine) const;

 private:
  ActivationLimits limits_for(int64_t batch_size, int64_t max_row_length, bool gradient_checkpointing) const;
  // Workspace of the optimizer: that of the largest parameter that cannot be cut.
  int64_t update_workspace_bytes(int64_t num_threads) const;
  MemoryRequest make_request(const MachineResources& machine) const;
  bool fits(const MemoryRequest& request, const MachineResources& machine) const;
  void fit_largest(int64_t least, int64_t most, const MachineResources& machine, MemoryRequest* request,
                   int64_t* count) const;
  std::vector<MemoryAlternative> alternatives(const MemoryRequest& request,
                                              const MachineResources& machine) const;
  void choose_chunks_ahead(const MachineResources& machine, MemoryRequest* request) const;
  void choose_experts(const MachineResources& machine, MemoryRequest* request) const;
  void choose_packing(const MachineResources& machine, MemoryRequest* request) const;
  void choose_kept_outputs(const MachineResources& machine, MemoryRequest* request) const;

  const RunSpec& spec_;
  const TrainableModel& model_;
  RowLengths data_;
  int64_t micro_batches_;  // of a rank in a step
  int64_t micro_batch_rows_;
  int64_t micro_batches_per_pass_ = 1;
  int64_t max_pass_tokens_ = 0;
};

// Fills step_rows, micro_batches, micro_batch_rows, steps_per_epoch, max_steps and num_warmup_steps.
void plan_steps(const BatchSpec& batch, const ScheduleSpec& schedule, const BatchPlanOptions& options,
                const BatchPlan& batches, RunPlan* plan);

}  // namespace tessera
