// The memory of a run, by kind, computed before any of it is allocated: the table shown at the start of a run
// and by `tessera plan`.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "model/trainable_model.h"
#include "shard/layout/device_window_places.h"
#include "shard/layout/model_places.h"
#include "shard/layout/weight_window.h"
#include "shard/layout/zero_memory.h"
#include "shard/outer/outer_plan.h"

namespace tessera {

// Memory of all processes of a node together.
struct NodeMemory {
  int64_t private_bytes = 0;
  int64_t shared_bytes = 0;

  int64_t node_bytes() const { return private_bytes + shared_bytes; }
};

// Sizes of the allocations themselves, so that the resident set of the processes at their peak is the total;
// the system rounds each large allocation up to pages of 2 MiB at most.
struct MemoryPlan {
  std::vector<MemoryItem> items;  // by kind, in the order of kMemoryKinds
  std::string device;             // the model's device, if it has memory of its own
  int num_nodes = 1;
  int local_world_size = 1;

  // Mean over the ranks, each with its share of what its node keeps once: the proportional set size.
  int64_t rank_bytes() const { return node_bytes() / local_world_size; }
  int64_t node_bytes() const;
  int64_t job_bytes() const { return node_bytes() * num_nodes; }
  int64_t private_bytes() const;  // of a rank other than the first
  int64_t shared_bytes() const;   // of one node
  int64_t bytes_on_node(const MemoryItem& item) const;
  int64_t device_bytes() const;    // everything else is the host's
  NodeMemory step_memory() const;  // without what only writing the weights touches
};

// Everything the memory of a training run depends on.
struct MemoryRequest {
  ActivationLimits limits;
  int64_t baseline_bytes = 0;       // per rank, before the model: program, threads, row index
  int64_t export_bytes = 0;         // buffers for writing weights: of every rank, or of the first alone
  bool first_rank_exports = false;  // all weights; if the nodes share no folder
  int64_t snapshot_bytes = 0;       // per rank: state that changes before it is in the checkpoint
  int64_t frozen_file_bytes = 0;    // of the weights beside adapters, on disk
  int64_t product_bytes = 0;        // per rank: memory a product library allocates itself
  bool peer_snapshots = false;
  int num_nodes = 1;
  int local_world_size = 1;
  int64_t context_size = 1;  // ranks that share rows (context/)
  int connections = 4;       // between two ranks on different nodes
  Fabric fabric = {};
  ZeroSettings zero;  // its weight_dtype is ignored; the model's counts
};

// Number of frozen parameters beside adapters; 0 if all weights are trained.
int64_t frozen_parameters(const TrainableModel& model);
// "8,030,261,248 parameters", or "20,971,520 parameters in adapters of 8,030,261,248".
std::string parameters_text(int64_t num_parameters, int64_t num_frozen);

MemoryPlan plan_memory(const TrainableModel& model, const MemoryRequest& request);

// request.zero in the model's dtype.
ZeroSettings zero_settings(const TrainableModel& model, const MemoryRequest& request);

// Whether packed weights can be kept: the node must hold all weights for the whole step.
bool can_keep_packed_weights(const TrainableModel& model, const MemoryRequest& request);
// Error(kBadConfig) if they are requested but cannot be kept.
void check_packed_weights(const TrainableModel& model, const MemoryRequest& request);

// Buffers for writing the weights: a piece of the file and its elements in float32 or, for ranks that write
// together, each rank's piece of the model or of a checkpoint. Buffers for reading either, at most 5 MiB per
// thread, are gone before the activations are touched.
int64_t export_bytes(const ParameterLayout& layout, DType save_dtype, const MemoryRequest& request);

// Bytes a rank may use for checkpoints written while training continues: half of what the request leaves of a
// node's free_bytes, up to the whole state. The page cache for the files needs the other half. No run depends
// on it: add it to the request once everything else is decided.
int64_t snapshot_bytes(const TrainableModel& model, const MemoryRequest& request, int64_t free_bytes);

// Per node, beyond the baseline of its ranks, which is already resident; if the model's device has memory of
// its own, of that.
int64_t needed_bytes(const TrainableModel& model, const MemoryRequest& request);
// The host's share, wherever the model is.
int64_t needed_host_bytes(const TrainableModel& model, const MemoryRequest& request);

struct PlannedModel;  // planned_model.h

// A change of settings and the resulting request.
struct MemoryAlternative {
  std::string change;  // "gradient_checkpointing true"
  MemoryRequest request;
  // Set if its model differs from the request's.
  std::function<std::unique_ptr<const PlannedModel>()> make_model = {};
};

// Settings a run could change, for memory_alternatives().
struct MemoryChoices {
  int64_t batch_size = 1;              // per_device_train_batch_size
  int64_t micro_batches_per_pass = 1;  // more than one if they are merged
  // Limits of a run with batch_size rows at once, rows of at most max_row_length tokens, with or without
  // checkpointing.
  std::function<ActivationLimits(int64_t batch_size, int64_t max_row_length, bool gradient_checkpointing)>
      limits_for;
  bool keeps_global_batch = false;  // smaller micro-batches make more passes
  bool has_disk = true;             // nodes have one of their own
  // If the model is on another device: whether the host has room for its share of a request.
  std::function<bool(const MemoryRequest& request)> host_takes = {};
  // Possible numbers of ranks that share rows, ascending, and the model of one of them.
  std::vector<int64_t> context_sizes = {};
  std::function<std::unique_ptr<const PlannedModel>(int64_t context_size)> make_model = {};
};

// Settings under which the run takes less, from the least intrusive to the most: weights not packed,
// no peer snapshots, micro-batches not merged, sync_every 0, gather_schedule per_layer, zero_stage 3,
// checkpointing, optimizer state on a disk, state or all parameters on the host of a device, fewer rows at
// once, ranks that share rows, shorter rows.
std::vector<MemoryAlternative> memory_alternatives(const MemoryRequest& request,
                                                   const MemoryChoices& choices);

// The fewest nodes, up to max_nodes, with which the run takes at most free_bytes per node under the current
// settings.
std::optional<int> nodes_that_fit(const TrainableModel& model, const MemoryRequest& request,
                                  int64_t free_bytes, int max_nodes);

// Why a plan that needs more than free_bytes per node beyond the already resident baseline does not fit: the
// table in brief, the first alternative that would fit, and how many nodes would suffice, if need be with
// everything sharded over them and with one of the alternatives. Empty if the plan fits.
std::string memory_refusal(const TrainableModel& model, const MemoryRequest& request, int64_t free_bytes,
                           const std::vector<MemoryAlternative>& alternatives);

// The plan as lines of at most 78 columns, by kind, with the total and a node's free memory. With several
// ranks there is a column each for a rank, a node and the job; a rank has its share of shared memory.
std::string memory_table(const MemoryPlan& plan, int64_t free_bytes);

// Measured once all memory of a step has been touched.
struct MeasuredMemory : NodeMemory {
  // Sum of the ranks' peak resident sets up to the end of reading the weights: an upper bound for the node,
  // since each rank counts the shared memory it has touched.
  int64_t loading_peak_bytes = 0;
  int64_t device_bytes = 0;  // of the model's device, if it has memory of its own
};

// Lines of text that compare the measurement with step_memory().
std::string measured_table(const MemoryPlan& plan, const MeasuredMemory& measured);

// The items of a plan: kind, name, scope, use, bytes.
nlohmann::ordered_json memory_items_json(const MemoryPlan& plan);
// The content of memory.json: plan and measurement, with every item of the plan; sizes in bytes.
std::string memory_json(const MemoryPlan& plan, const MeasuredMemory& measured);

}  // namespace tessera
