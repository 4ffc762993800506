#include "plan/expert_plan.h"

#include "context/expert_rail.h"
#include "model/blocks/moe_block.h"
#include "settings/derived.h"

namespace tessera {
namespace {

int64_t row_bytes(const ModelConfig& config, DType dtype) { return config.hidden_size * dtype_bytes(dtype); }

}  // namespace

std::string expert_parallel_obstacle(const RunSpec& spec, const ModelConfig& config, int num_nodes) {
  if (!config.experts) return "a model without experts";
  if (num_nodes == 1) return "a single node";
  if (config.experts->num_experts < num_nodes)
    return fmt::format("{} nodes and {} experts", num_nodes, config.experts->num_experts);
  if (config.lora) return "adapters";
  if (spec.sharding.stage != 3) return fmt::format("zero_stage {}", spec.sharding.stage.value_or(0));
  if (spec.sharding.gather_schedule == GatherChoice::kPerStep) return "gather_schedule per_step";
  if (spec.sharding.quantized_gradients) return "zero_quantized_gradients";
  if (spec.sharding.context_parallel_size > 1)
    return fmt::format("context_parallel_size {}", spec.sharding.context_parallel_size);
  if (spec.outer.sync_every > 0) return fmt::format("sync_every {}", spec.outer.sync_every);
  if (spec.placement.optimizer_in_backward) return "optimizer_in_backward";
  if (spec.placement.pack_weights == AutoChoice::kAlways) return "pack_weights always";
  if (spec.saving.peer_snapshot_steps > 0)
    return fmt::format("peer_snapshot_steps {}", spec.saving.peer_snapshot_steps);
  if (spec.guards.replay_check_steps > 0)
    return fmt::format("replay_check_steps {}", spec.guards.replay_check_steps);
  if (!is_elementwise(state_tensors_of(spec.optimizer))) return fmt::format("optim {}", spec.optimizer.form);
  return "";
}

int64_t expert_buffer_bytes(const TrainableModel& model, const MemoryRequest& request) {
  if (!request.zero.divides_experts) return 0;
  return ExpertRail::buffer_bytes(max_chunk_rows(model.config(), request.limits.max_tokens),
                                  row_bytes(model.config(), model.dtype()), request.num_nodes);
}

int64_t expert_rows_bytes(const ModelConfig& config, DType dtype, int64_t num_tokens) {
  return num_tokens * config.experts->num_experts_per_tok * row_bytes(config, dtype);
}

int64_t num_expert_layers(const ModelConfig& config) {
  int64_t count = 0;
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer)
    count += config.has_experts(layer) ? 1 : 0;
  return count;
}

int64_t expert_wire_bytes(const TrainableModel& model, const MemoryRequest& request) {
  if (!request.zero.divides_experts) return 0;
  const ModelConfig& config = model.config();
  const int64_t of_layer = (kForwardExchanges + kBackwardExchanges) *
                           expert_rows_bytes(config, model.dtype(), request.limits.max_tokens) *
                           (request.num_nodes - 1) / request.num_nodes;
  return request.zero.passes_per_step * request.local_world_size * num_expert_layers(config) * of_layer;
}

bool divided_experts_are_faster(const TrainableModel& model, const MemoryRequest& divided,
                                const MemoryRequest& whole) {
  const auto wire = [&](const MemoryRequest& request) {
    return mean_wire_bytes(zero_layout(model.layout(), request.num_nodes, request.local_world_size),
                           zero_settings(model, request), 0)
        .sent();
  };
  return wire(divided) + expert_wire_bytes(model, divided) * 3 / 2 < wire(whole);
}

}  // namespace tessera
