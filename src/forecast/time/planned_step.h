// A step of a run on machines that need not exist: rows of equal length, memory from the run planner, the
// inputs that its time depends on.
#pragma once

#include <cstdint>

#include "forecast/time/step_time.h"
#include "model/trainable_model.h"
#include "plan/run_planner.h"
#include "settings/run_settings.h"

namespace tessera {

// Nodes with this much memory; each rank already has as much resident as this process.
MachineResources planned_machine(int num_nodes, int local_world_size, int64_t num_threads,
                                 int64_t node_memory_bytes);

class PlannedStep {
 public:
  // `spec` must be resolved for num_nodes * local_world_size ranks; the model's Ops have as many threads as a
  // rank will have. Both must outlive this. No row has more than max_row_tokens.
  PlannedStep(const RunSpec& spec, const TrainableModel& model, int num_nodes, int local_world_size,
              int64_t num_threads, int64_t max_row_tokens);

  const RunPlanner& planner() const { return planner_; }
  int64_t step_rows() const { return global_batch_rows(batch_); }
  // For a model on a card with what is free on that.
  MachineResources machine(int64_t node_memory_bytes) const;
  // `request` is one of planner().choose_memory(); row_tokens is the mean length of the rows.
  StepInputs inputs(const MemoryRequest& request, int64_t row_tokens) const;

 private:
  const TrainableModel& model_;
  BatchPlanOptions batch_;
  int num_nodes_;
  int local_world_size_;
  int64_t num_threads_;
  RunPlanner planner_;
};

}  // namespace tessera
