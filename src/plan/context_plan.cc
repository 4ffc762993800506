#include "plan/context_plan.h"

#include "context/context_ops.h"
#include "model/attention_shape.h"

namespace tessera {
namespace {

AttentionShape heads_of(const TrainableModel& model) { return attention_shape(model.config(), 0); }

}  // namespace

int64_t context_buffer_bytes(const TrainableModel& model, const MemoryRequest& request) {
  if (request.context_size == 1) return 0;
  return ContextAllToAll::buffer_bytes(
      request.context_size, request.local_world_size,
      ContextOps::all_to_all_bytes(heads_of(model), request.context_size, request.limits.max_tokens,
                                   model.dtype()));
}

int64_t context_wire_bytes(const TrainableModel& model, const MemoryRequest& request) {
  const int64_t size = request.context_size;
  if (size <= request.local_world_size) return 0;
  const AttentionShape own_heads = heads_of_member(heads_of(model), size);
  const auto sent = [&](int64_t width) {
    return request.local_world_size * ContextAllToAll::sent_bytes(size, request.local_world_size,
                                                                  width * dtype_bytes(model.dtype()),
                                                                  request.limits.max_tokens);
  };
  const int64_t qkv = sent(own_heads.qkv_width()), o = sent(own_heads.num_heads * own_heads.head_dim);
  const int64_t num_layers = model.config().num_hidden_layers;
  const int64_t of_pass =
      (num_layers + model.num_recomputed_attentions(request.limits)) * (qkv + o) + num_layers * 2 * (qkv + o);
  return request.zero.passes_per_step * of_pass;
}

}  // namespace tessera
