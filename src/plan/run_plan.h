// Everything known about a run before its first step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/trainable_model.h"
#include "plan/disk_plan.h"
#include "plan/memory_plan.h"
#include "platform/peak.h"
#include "shard/layout/zero_memory.h"

namespace tessera {

struct RunPlan {
  int64_t num_parameters = 0;  // trained ones
  int64_t num_frozen = 0;
  std::string operations;   // Ops::description()
  int64_t num_threads = 0;  // of a rank
  // At the start, all ranks together; nullopt if any of them has measure_peak false or no vector
  // instructions.
  std::optional<ComputePeak> peak;

  // Data and steps.
  int64_t num_rows = 0;    // of an epoch; 0 if it is not known
  int64_t num_tokens = 0;  // of one epoch
  int64_t eval_rows = 0;
  int64_t step_rows = 0;         // of all ranks
  int64_t micro_batches = 1;     // of a rank in a step
  int64_t micro_batch_rows = 0;  // at most
  int64_t steps_per_epoch = 0;
  int64_t max_steps = 0;
  int64_t num_warmup_steps = 0;
  int64_t micro_batches_per_pass = 1;
  int64_t max_pass_tokens = 0;  // of what goes through the model at once, on all ranks that share rows
  int64_t context_size = 1;     // the number of those ranks

  // Memory, network, disk.
  ActivationLimits limits;
  // True if the run uses gradient checkpointing and would fit into memory without it.
  bool fits_without_checkpointing = false;
  ZeroSettings zero;           // matters with several ranks
  int64_t snapshot_bytes = 0;  // of a rank, for checkpoints written while training continues
  MemoryPlan memory;
  WireBytes wire;          // between nodes in a step, of the first node
  int64_t free_bytes = 0;  // of a node, for this run
  std::string refusal;     // why it does not fit into memory and what would; "" if it fits
  DiskPlan disk;           // of rank 0
};

}  // namespace tessera
