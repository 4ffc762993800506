#include "model/llama/activations.h"

#include "model/allocate.h"
#include "model/offloaded_inputs.h"

namespace tessera {

void Activations::reserve(const ModelConfig& config, int64_t max_tokens) {
  layers.reserve(static_cast<size_t>(config.num_hidden_layers));
  target_rows.reserve(max_tokens, config.dropout.stack_output > 0);
  if (config.experts) router.reserve(config, max_tokens);
}

ActivationPolicy activation_policy(const ModelConfig& config, DType dtype, const ActivationLimits& limits) {
  ActivationPolicy policy = {limits.training, kept_outputs(config, dtype, limits), limits.offload_inputs};
  if (limits.expert_nodes > 1)
    policy.arriving_rows =
        ExpertExchange::capacity(max_chunk_rows(config, limits.max_tokens), limits.expert_nodes);
  return policy;
}

namespace {

// The first tensors of an arena: the slots start where direct I/O can transfer them.
TensorView allocate_slot(Arena& arena, DType dtype, const Shape& shape) {
  const int64_t bytes = shape.num_elements() * dtype_bytes(dtype);
  return {arena.allocate_bytes(OffloadedInputs::slot_bytes(bytes)), dtype, shape, arena.device()};
}

}  // namespace

void Activations::lay_out(const ModelConfig& config, DType dtype, int64_t num_tokens,
                          const ActivationPolicy& policy, Arena& saved, Arena& working,
                          const LoraLimits& lora) {
  const Shape stream_shape = {num_tokens, config.hidden_size};
  layers.resize(policy.layers.size());
  const int64_t num_inputs = !policy.training         ? 1
                             : policy.offloads_inputs ? OffloadedInputs::kSlots
                                                      : std::ssize(layers);
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto slot = i % static_cast<size_t>(num_inputs);
    layers[i] = {};
    layers[i].attention.x_TD = slot < i                 ? layers[slot].attention.x_TD
                               : policy.offloads_inputs ? allocate_slot(saved, dtype, stream_shape)
                                                        : allocate_tensor(saved, dtype, stream_shape);
  }
  LayerSaved shared;  // of the layers that recompute an output
  bool shares_gate_up = false;
  for (size_t i = 0; i < layers.size(); ++i) {
    LayerSaved& layer = layers[i];
    const KeptOutputs& kept = policy.layers[i];
    AttentionSaved& qkv = kept.qkv ? layer.attention : shared.attention;
    if (qkv.qkv_TQ.shape().rank() == 0) allocate_qkv(saved, config, dtype, num_tokens, qkv);
    AttentionSaved& output = kept.attention ? layer.attention : shared.attention;
    if (output.o_THE.shape().rank() == 0) {
      allocate_attention_output(saved, config, dtype, num_tokens, output);
    }
    MlpSaved& stream = kept.stream ? layer.mlp : shared.mlp;
    if (stream.x_TD.shape().rank() == 0) stream.x_TD = allocate_tensor(saved, dtype, stream_shape);
    AttentionSaved& raw = kept.stream ? layer.attention : shared.attention;
    if (raw.raw_TD.shape().rank() == 0) allocate_raw_output(saved, config, dtype, num_tokens, raw);
    layer.attention = {.x_TD = layer.attention.x_TD,
                       .qkv_raw_TQ = qkv.qkv_raw_TQ,
                       .q_rstd_TH = qkv.q_rstd_TH,
                       .k_rstd_TG = qkv.k_rstd_TG,
                       .qkv_TQ = qkv.qkv_TQ,
                       .o_THE = output.o_THE,
                       .lse_HT = output.lse_HT,
                       .raw_TD = raw.raw_TD,
                       .raw_statistics_T = raw.raw_statistics_T};
    layer.mlp.x_TD = stream.x_TD;
    if (config.has_experts(static_cast<int64_t>(i)) && policy.arriving_rows > 0) {
      // The rows are elsewhere: backward has them come again.
    } else if (kept.gate_up && config.has_experts(static_cast<int64_t>(i))) {
      layer.mlp.gate_up_TF2 = allocate_expert_gate_up(saved, config, dtype, num_tokens);
    } else if (kept.gate_up) {
      allocate_gate_up_and_raw(saved, config, dtype, num_tokens, layer.mlp);
    }
    shares_gate_up |= !kept.gate_up;
  }
  final_x_TD = policy.training ? allocate_tensor(saved, dtype, stream_shape) : layers[0].attention.x_TD;

  dx_TD = policy.training ? allocate_tensor(working, dtype, stream_shape) : TensorView();
  const Arena::Mark mark = working.mark();
  layer_scratch = allocate_layer_scratch(working, config, dtype, num_tokens, policy.training, shares_gate_up,
                                         policy.arriving_rows, lora);
  layer_scratch.moe.router = &router;
  working.release(mark);
  loss_scratch =
      allocate_loss_head_scratch(working, config, dtype, policy.logits, num_tokens, policy.training);
  working.release(mark);
}

}  // namespace tessera
