// Predicts the time of a training step, by part.
#pragma once

#include <cstdint>

#include "forecast/time/op_costs.h"
#include "forecast/time/step_walk.h"
#include "plan/memory_plan.h"

namespace tessera {

// Seconds of a step on the rank with the most rows.
struct StepTime {
  double products_s = 0;  // with the packing of new weights
  double attention_s = 0;
  double elementwise_s = 0;
  double optimizer_s = 0;  // the update
  double local_s = 0;      // waiting for the slowest rank, sums of gradients over the ranks of a node
  double network_s = 0;    // between nodes, if nothing hid it
  double exposed_s = 0;    // what computation does not hide of it
  double disk_s = 0;       // of what is kept on a disk, if nothing hid it
  double disk_wait_s = 0;  // the part not hidden by computation and update
  double other_s = 0;      // choosing rows, the all-gather of sums, logging

  double compute_s() const { return products_s + attention_s + elementwise_s; }
  double step_s() const { return compute_s() + optimizer_s + local_s + exposed_s + disk_wait_s + other_s; }
};

// A step of rows of equal length.
struct StepInputs {
  int64_t row_tokens = 1024;
  int64_t pass_rows = 1;       // of a rank, or of ranks that share rows
  int64_t last_pass_rows = 1;  // at most as many
  int64_t num_passes = 1;      // of a rank
  bool gradient_checkpointing = false;
  int64_t num_kept_outputs = 0;  // ActivationLimits::num_kept_outputs
  bool offload_inputs = false;   // ActivationLimits::offload_inputs
  bool pack_weights = false;
  int64_t context_size = 1;  // ranks that share rows
  int64_t num_threads = 1;   // of a rank
  int num_nodes = 1;
  int local_world_size = 1;
  int64_t frozen_file_bytes = 0;  // MemoryRequest::frozen_file_bytes
  ZeroSettings zero;              // passes_per_step as above
};

// The inputs of a planned run: `request` as RunPlanner chose it (its zero, limits, nodes and ranks), steps of
// gradient_accumulation_steps micro-batches, merged into passes as RunPlanner::micro_batches_per_pass() says.
StepInputs step_inputs(const MemoryRequest& request, int64_t row_tokens, int64_t micro_batch_rows,
                       int64_t gradient_accumulation_steps, int64_t micro_batches_per_pass,
                       int64_t num_threads);

// A rank's computation in one of the passes, and in the update.
PassShape pass_shape(const StepWalks& walks, const StepInputs& inputs, const OpCosts& op_costs, int64_t pass);
UpdateWork update_work(const StepWalks& walks, const StepInputs& inputs);

// The first call for a shape walks through the model (milliseconds); others take microseconds.
StepTime predict_step(StepWalks& walks, const StepInputs& inputs, OpCosts& op_costs);

}  // namespace tessera
