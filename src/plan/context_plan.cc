#include "plan/context_plan.h"

#include "context/context_ops.h"
#include "model/llama/attention_block.h"
#include "model/llama/kept_outputs.h"

namespace tessera {
namespace {

AttentionShape heads_of(const TrainableModel& model) {
  return attention_block_config(model.config(), 0).shape;
}

// Layers whose attention the backward pass computes again.
int64_t num_recomputed(const TrainableModel& model, const ActivationLimits& limits) {
  if (!limits.gradient_checkpointing) return 0;
  const std::vector<KeptOutputs> kept = kept_outputs(model.config(), model.dtype(), limits);
  int64_t count = 0;
  for (size_t layer = 0; layer + 1 < kept.size(); ++layer) count += kept[layer].attention ? 0 : 1;
  return count;
}

}  // namespace

int64_t context_buffer_bytes(const TrainableModel& model, const MemoryRequest& request) {
  if (request.context_size == 1) return 0;
  return ContextExchange::buffer_bytes(request.context_size, request.local_world_size,
                                       ContextOps::exchange_bytes(heads_of(model), request.context_size,
                                                                  request.limits.max_tokens, model.dtype()));
}

int64_t context_wire_bytes(const TrainableModel& model, const MemoryRequest& request) {
  const int64_t size = request.context_size;
  if (size <= request.local_world_size) return 0;
  const AttentionShape own_heads = heads_of_member(heads_of(model), size);
  const auto sent = [&](int64_t width) {
    return request.local_world_size * ContextExchange::sent_bytes(size, request.local_world_size,
                                                                  width * dtype_bytes(model.dtype()),
                                                                  request.limits.max_tokens);
  };
  const int64_t qkv = sent(own_heads.qkv_width()), o = sent(own_heads.num_heads * own_heads.head_dim);
  const int64_t num_layers = model.config().num_hidden_layers;
  const int64_t of_pass =
      (num_layers + num_recomputed(model, request.limits)) * (qkv + o) + num_layers * 2 * (qkv + o);
  return request.zero.passes_per_step * of_pass;
}

}  // namespace tessera
