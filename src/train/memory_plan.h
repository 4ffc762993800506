// What a run will keep in memory, by kind, known before any of it is allocated: the table that a run begins
// with and the one of `tessera plan`.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "model/model.h"
#include "zero/zero_memory.h"

namespace tessera {

// What the processes of a node take, added up.
struct NodeMemory {
  int64_t private_bytes = 0;
  int64_t shared_bytes = 0;

  int64_t node_bytes() const { return private_bytes + shared_bytes; }
};

// Sizes of the allocations themselves, so that the resident set of the processes at their peak is the total;
// the system rounds each large allocation up to pages of 2 MiB at most.
struct MemoryPlan {
  std::vector<MemoryItem> items;  // by kind, in the order of kMemoryKinds
  int num_nodes = 1;
  int local_world_size = 1;

  // Mean of the ranks, each with its share of what its node keeps once: what the system calls the
  // proportional set size.
  int64_t rank_bytes() const { return node_bytes() / local_world_size; }
  int64_t node_bytes() const;
  int64_t job_bytes() const { return node_bytes() * num_nodes; }
  int64_t private_bytes() const;   // of one rank that is not the first
  int64_t shared_bytes() const;    // of one node
  NodeMemory step_memory() const;  // without what only writing weights touches
};

// What decides the memory of a training run.
struct MemoryRequest {
  ActivationLimits limits;
  int64_t baseline_bytes =
      0;                     // of a rank, resident before the model is allocated: program, threads, row index
  int64_t export_bytes = 0;  // buffers of writing weights: of every rank, or of the first alone
  bool first_rank_exports = false;  // the weights of all, where the nodes have no common folder
  int64_t snapshot_bytes = 0;       // of a rank: state that changes before a checkpoint has it
  bool peer_snapshots = false;
  int num_nodes = 1;
  int local_world_size = 1;
  int connections = 4;  // between two ranks on different nodes
  ZeroSettings zero;    // its weight_dtype is ignored for the model's
};

MemoryPlan plan_memory(const Model& model, const MemoryRequest& request);

// What ZeRO's arithmetic asks of the model's parameters.
ZeroLayout zero_layout(const ParameterLayout& layout, int num_nodes, int local_world_size);
// request.zero in the model's dtype.
ZeroSettings zero_settings(const Model& model, const MemoryRequest& request);

// Packed weights are kept where a node has all weights for the whole step.
bool can_keep_packed_weights(const Model& model, const MemoryRequest& request);
// Refuses (kBadConfig) a request for them elsewhere.
void check_packed_weights(const Model& model, const MemoryRequest& request);

// Buffers of writing the weights: a piece of the file and its elements in float32, or of a rank among several
// that write together a piece of the model or of a checkpoint. Those of reading either, at most 5 MiB a
// thread, are gone before the activations are touched.
int64_t export_bytes(const ParameterLayout& layout, DType save_dtype, const MemoryRequest& request);

// What a rank may take for checkpoints that are written while training goes on: half of what the request
// leaves of free_bytes of a node, up to the whole state. Files go through the other half. No run needs
// it: to be put into the request when all else is decided.
int64_t snapshot_bytes(const Model& model, const MemoryRequest& request, int64_t free_bytes);

// Of a node, beyond the baseline of its ranks, which is resident already.
int64_t needed_bytes(const Model& model, const MemoryRequest& request);

// A change of settings and the request that would follow from it.
struct MemoryAlternative {
  std::string change;  // "gradient_checkpointing true"
  MemoryRequest request;
};

// What a run could change, for memory_alternatives().
struct MemoryChoices {
  int64_t batch_size = 1;              // per_device_train_batch_size
  int64_t micro_batches_per_pass = 1;  // more than one where they are merged
  // Limits of a run with this many rows at once, rows of at most so many tokens, and checkpointing or not.
  std::function<ActivationLimits(int64_t batch_size, int64_t max_row_length, bool gradient_checkpointing)>
      limits_for;
  bool keeps_global_batch = false;  // smaller micro-batches make more passes
};

// Settings under which the run takes less, from the least intrusive to the most: weights not packed,
// no peer snapshots, micro-batches not merged, gather_schedule per_layer, zero_stage 3, checkpointing, fewer
// rows at once, shorter rows.
std::vector<MemoryAlternative> memory_alternatives(const MemoryRequest& request,
                                                   const MemoryChoices& choices);

// The fewest nodes, at most max_nodes, on each of which the run takes no more than free_bytes with the
// settings as they are.
std::optional<int> nodes_that_fit(const Model& model, const MemoryRequest& request, int64_t free_bytes,
                                  int max_nodes);

// Why a plan of more than free_bytes a node beyond the baseline, which is resident already, does not fit: the
// table in short, the first of the alternatives that would fit, and how many nodes would do, if need be with
// everything sharded over them and with one of the alternatives. Empty when it fits.
std::string memory_refusal(const Model& model, const MemoryRequest& request, int64_t free_bytes,
                           const std::vector<MemoryAlternative>& alternatives);
// Refuses (kBadConfig) it.
void check_memory_fits(const Model& model, const MemoryRequest& request, int64_t free_bytes,
                       const std::vector<MemoryAlternative>& alternatives);

// The plan as lines of text of at most 78 columns, by kind, with the total and what is free on a node. With
// several ranks a column each for a rank, a node and the job; a rank has its share of what is shared.
std::string memory_table(const MemoryPlan& plan, int64_t free_bytes);

// What was found when all memory of a step had been touched.
struct MeasuredMemory : NodeMemory {
  // Resident sets of the ranks, added up, at their highest until the weights had been read: at least what
  // the node had in memory then, since each counts the shared memory that it has touched.
  int64_t loading_peak_bytes = 0;
};

// Lines of text that put it beside step_memory().
std::string measured_table(const MemoryPlan& plan, const MeasuredMemory& measured);

// The content of memory.json: both, with every item of the plan; sizes in bytes.
std::string memory_json(const MemoryPlan& plan, const MeasuredMemory& measured);

}  // namespace tessera
