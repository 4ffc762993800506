#include "forecast/time/planned_step.h"

#include "platform/memory_info.h"

namespace tessera {
namespace {

// Host memory that the driver, the context and cuBLASLt take.
constexpr int64_t kHostBytesOfCard = int64_t{1} << 30;

}  // namespace

PlannedStep::PlannedStep(const RunSpec& spec, const TrainableModel& model, int num_nodes,
                         int local_world_size, int64_t num_threads, int64_t max_row_tokens)
    : model_(model),
      batch_(spec.batch_options(num_nodes * local_world_size)),
      num_nodes_(num_nodes),
      local_world_size_(local_world_size),
      num_threads_(num_threads),
      planner_(spec, model, batch_, uniform_rows(max_row_tokens, micro_batch_rows(batch_))) {}

MachineResources planned_machine(int num_nodes, int local_world_size, int64_t num_threads,
                                 int64_t node_memory_bytes) {
  static const int64_t resident = resident_bytes();  // one figure, so that equal plans are equal
  MachineResources machine;
  machine.num_nodes = num_nodes;
  machine.local_world_size = local_world_size;
  machine.num_threads = num_threads;
  machine.baseline_bytes = resident;
  machine.free_bytes = node_memory_bytes - local_world_size * resident;
  return machine;
}

MachineResources PlannedStep::machine(int64_t node_memory_bytes) const {
  MachineResources machine = planned_machine(num_nodes_, local_world_size_, num_threads_, node_memory_bytes);
  take_device_memory(model_.device(), &machine);
  machine.host_free_bytes -= kHostBytesOfCard;
  return machine;
}

StepInputs PlannedStep::inputs(const MemoryRequest& request, int64_t row_tokens) const {
  return step_inputs(request, row_tokens, micro_batch_rows(batch_), micro_batches_of_rank(batch_),
                     planner_.micro_batches_per_pass(), num_threads_);
}

}  // namespace tessera
