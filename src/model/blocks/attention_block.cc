#include "model/blocks/attention_block.h"

#include "model/allocate.h"
#include "model/attention_shape.h"
#include "model/blocks/residual_norm.h"

namespace tessera {

AttentionBlockConfig attention_block_config(const ModelConfig& config, int64_t layer) {
  return {
      .shape = attention_shape(config, layer),
      .norm = NormConfig(config),
      .rope = config.layer_rope.empty() ? LayerRope::kGlobal : config.layer_rope[static_cast<size_t>(layer)],
      .output = block_output(config),
      .has_sinks = config.attention_sinks};
}

void allocate_qkv(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens,
                  AttentionSaved& saved) {
  const int64_t num_heads = config.num_attention_heads;
  const int64_t num_kv_heads = config.num_key_value_heads;
  const int64_t qkv_width = (num_heads + 2 * num_kv_heads) * config.head_dim;
  if (config.qk_norm) {
    saved.qkv_raw_TQ = allocate_tensor(arena, dtype, {num_tokens, qkv_width});
    const bool is_whole = config.qk_norm_whole;
    saved.q_rstd_TH = allocate_tensor(arena, DType::kF32, {num_tokens, is_whole ? 1 : num_heads});
    saved.k_rstd_TG = allocate_tensor(arena, DType::kF32, {num_tokens, is_whole ? 1 : num_kv_heads});
  }
  saved.qkv_TQ = allocate_tensor(arena, dtype, {num_tokens, qkv_width});
}

void allocate_attention_output(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens,
                               AttentionSaved& saved) {
  const int64_t num_heads = config.num_attention_heads;
  saved.o_THE = allocate_tensor(arena, dtype, {num_tokens, num_heads * config.head_dim});
  saved.lse_HT = allocate_tensor(arena, DType::kF32, {num_heads, num_tokens});
}

void allocate_raw_output(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens,
                         AttentionSaved& saved) {
  if (!block_output(config).has_norm) return;
  saved.raw_TD = allocate_tensor(arena, dtype, {num_tokens, config.hidden_size});
  saved.raw_statistics_T =
      allocate_tensor(arena, DType::kF32, norm_statistics_shape(config.norm, num_tokens));
}

AttentionScratch allocate_attention_scratch(Arena& arena, const ModelConfig& config, DType dtype,
                                            int64_t num_tokens, bool training) {
  const int64_t q_width = config.num_attention_heads * config.head_dim;
  const int64_t qkv_width = q_width + 2 * config.num_key_value_heads * config.head_dim;
  AttentionScratch scratch;
  scratch.norm_TD = allocate_tensor(arena, dtype, {num_tokens, config.hidden_size});
  scratch.statistics_T = allocate_tensor(arena, DType::kF32, norm_statistics_shape(config.norm, num_tokens));
  if (training) {
    if (block_output(config).changes())
      scratch.draw_TD = allocate_tensor(arena, dtype, {num_tokens, config.hidden_size});
    scratch.do_THE = allocate_tensor(arena, dtype, {num_tokens, q_width});
    scratch.dqkv_TQ = allocate_tensor(arena, dtype, {num_tokens, qkv_width});
    if (config.dropout.attention_output > 0)
      scratch.ddropped_TD = allocate_tensor(arena, dtype, {num_tokens, config.hidden_size});
  }
  return scratch;
}

namespace {

// (4)
void rotate(Ops& ops, const AttentionBlockConfig& config, const SequenceInfo& sequences, TensorView qkv_TQ,
            bool inverse) {
  if (config.rope == LayerRope::kNone) return;
  const RopeTable& table = config.rope == LayerRope::kLocal ? sequences.local_rope : sequences.rope;
  ops.rope(qkv_TQ, config.shape, sequences.positions, table, inverse);
}

// (2) to (4): queries, keys and values as attention takes them.
void project_qkv(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
                 const SequenceInfo& sequences, ConstTensorView input_TD, const AttentionSaved& saved,
                 const LoraScratch& lora) {
  const AttentionShape& shape = config.shape;
  const int64_t q_end = shape.num_heads;
  const int64_t k_end = q_end + shape.num_key_value_heads;
  if (weights.q_norm_E.empty()) {
    ops.linear(input_TD, weights.wqkv_QD, weights.bqkv_Q, saved.qkv_TQ);
    lora_forward(ops, weights.lora_qkv, input_TD, lora, saved.qkv_TQ);
  } else {
    ops.linear(input_TD, weights.wqkv_QD, weights.bqkv_Q, saved.qkv_raw_TQ);
    lora_forward(ops, weights.lora_qkv, input_TD, lora, saved.qkv_raw_TQ);
    // The first call copies the heads it does not normalise; the second works in place.
    ops.head_rmsnorm(saved.qkv_raw_TQ, shape, 0, q_end, config.norm.weight(weights.q_norm_E), config.norm.eps,
                     saved.qkv_TQ, saved.q_rstd_TH);
    ops.head_rmsnorm(saved.qkv_TQ, shape, q_end, k_end, config.norm.weight(weights.k_norm_E), config.norm.eps,
                     saved.qkv_TQ, saved.k_rstd_TG);
  }
  rotate(ops, config, sequences, saved.qkv_TQ, /*inverse=*/false);
}

AttentionInputs general_inputs(const AttentionBlockConfig& config, const AttentionWeights& weights,
                               const SequenceInfo& sequences, const AttentionSaved& saved) {
  AttentionInputs inputs = AttentionInputs::of_fused(saved.qkv_TQ, config.shape, sequences.cu_seqlens);
  inputs.causal = config.causal;
  inputs.bias = sequences.bias;
  if (sequences.of_probabilities.drops()) inputs.dropout = &sequences.of_probabilities;
  inputs.sinks_H = weights.sinks_H;
  return inputs;
}

// (5)
void attend(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
            const SequenceInfo& sequences, const AttentionSaved& saved) {
  if (sequences.is_general(config)) {
    return ops.general_attention(general_inputs(config, weights, sequences, saved), config.shape, saved.o_THE,
                                 saved.lse_HT);
  }
  ops.attention(saved.qkv_TQ, config.shape, sequences.cu_seqlens, saved.o_THE, saved.lse_HT);
}

// (6), before the output is normalised or scaled.
void project_output(Ops& ops, const AttentionWeights& weights, const SequenceInfo& sequences,
                    const AttentionSaved& saved, const LoraScratch& lora, TensorView y_TD) {
  ops.linear(saved.o_THE, weights.wo_DHE, weights.bo_D, y_TD);
  lora_forward(ops, weights.lora_o, saved.o_THE, lora, y_TD);
  drop_in_place(ops, sequences.of_output, y_TD);
}

void attend_backward(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
                     const AttentionGrads& grads, Update update, const SequenceInfo& sequences,
                     const AttentionSaved& saved, ConstTensorView do_THE, TensorView dqkv_TQ) {
  if (sequences.is_general(config)) {
    return ops.general_attention_backward(
        do_THE, general_inputs(config, weights, sequences, saved), saved.o_THE, saved.lse_HT, config.shape,
        {dqkv_TQ, dqkv_TQ, sequences.dbias_BH, sequences.dbias_update, grads.sinks_H, update});
  }
  ops.attention_backward(do_THE, saved.qkv_TQ, saved.o_THE, saved.lse_HT, config.shape, sequences.cu_seqlens,
                         dqkv_TQ);
}

}  // namespace

void self_attention_recompute(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
                              const SequenceInfo& sequences, const KeptOutputs& kept,
                              ConstTensorView input_TD, const AttentionSaved& saved, const LoraScratch& lora,
                              TensorView y_TD) {
  if (!kept.qkv) project_qkv(ops, config, weights, sequences, input_TD, saved, lora);
  if (!kept.attention) attend(ops, config, weights, sequences, saved);
  if (!kept.stream) project_output(ops, weights, sequences, saved, lora, y_TD);
}

void self_attention_forward(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
                            const SequenceInfo& sequences, ConstTensorView input_TD,
                            const AttentionSaved& saved, const LoraScratch& lora, TensorView y_TD) {
  self_attention_recompute(ops, config, weights, sequences, /*kept=*/{}, input_TD, saved, lora, y_TD);
}

namespace {

// Where (6) is before the output is normalised or scaled: in the place of y unless there is a norm.
TensorView raw_output(const AttentionBlockConfig& config, const AttentionSaved& saved, TensorView y_TD) {
  return config.output.has_norm ? saved.raw_TD : y_TD;
}

void leave(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
           const AttentionSaved& saved, TensorView y_TD) {
  leave_block(ops, config.output, config.norm, weights.output_norm_D, raw_output(config, saved, y_TD), y_TD,
              saved.raw_statistics_T);
}

}  // namespace

void attention_block_forward(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
                             const SequenceInfo& sequences, ConstTensorView residual_TD,
                             const AttentionSaved& saved, const AttentionScratch& scratch, TensorView y_TD) {
  const TensorView input_TD = enter_block(ops, saved.x_TD, residual_TD, weights.norm_D, config.norm,
                                          scratch.norm_TD, scratch.statistics_T);
  self_attention_forward(ops, config, weights, sequences, input_TD, saved, scratch.lora,
                         raw_output(config, saved, y_TD));
  leave(ops, config, weights, saved, y_TD);
}

void attention_block_recompute(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
                               const SequenceInfo& sequences, const KeptOutputs& kept,
                               const AttentionSaved& saved, const AttentionScratch& scratch,
                               TensorView y_TD) {
  TensorView input_TD;
  if (!kept.qkv)
    input_TD = enter_block(ops, saved.x_TD, /*residual_TD=*/{}, weights.norm_D, config.norm, scratch.norm_TD,
                           scratch.statistics_T);
  self_attention_recompute(ops, config, weights, sequences, kept, input_TD, saved, scratch.lora,
                           raw_output(config, saved, y_TD));
  if (kept.stream) return;
  leave(ops, config, weights, saved, y_TD);
  ops.add(y_TD, saved.x_TD);
}

void self_attention_backward(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
                             const AttentionGrads& grads, WeightUpdate update, const SequenceInfo& sequences,
                             ConstTensorView dresult_TD, TensorView input_TD, const AttentionSaved& saved,
                             const AttentionScratch& scratch) {
  const AttentionShape& shape = config.shape;
  const int64_t q_end = shape.num_heads;
  const int64_t k_end = q_end + shape.num_key_value_heads;
  const TensorView do_THE = scratch.do_THE;
  const TensorView dqkv_TQ = scratch.dqkv_TQ;

  // (6) y = o wo^T + bo
  const ConstTensorView dy_TD = dropped_gradient(ops, sequences.of_output, dresult_TD, scratch.ddropped_TD);
  if (!grads.bo_D.empty()) ops.linear_backward_bias(dy_TD, grads.bo_D, update.mode);
  if (!grads.wo_DHE.empty()) ops.linear_backward_weight(dy_TD, saved.o_THE, grads.wo_DHE, update);
  ops.linear_backward_input(dy_TD, weights.wo_DHE, do_THE, Update::kOverwrite);
  lora_backward_output(ops, weights.lora_o, dy_TD, scratch.lora);
  lora_backward_weights(ops, weights.lora_o, grads.lora_o, update.mode, dy_TD, saved.o_THE, scratch.lora);
  lora_backward_input(ops, weights.lora_o, scratch.lora, do_THE);

  // (5) o = attention(q, k, v)
  attend_backward(ops, config, weights, grads, update.mode, sequences, saved, do_THE, dqkv_TQ);

  // (4) q, k = rope(q, k, position)
  rotate(ops, config, sequences, dqkv_TQ, /*inverse=*/true);

  // (3) q, k = rmsnorm per head
  if (!weights.q_norm_E.empty()) {
    ops.head_rmsnorm_backward(dqkv_TQ, saved.qkv_raw_TQ, shape, 0, q_end,
                              config.norm.weight(weights.q_norm_E), saved.q_rstd_TH, grads.q_norm_E,
                              update.mode);
    ops.head_rmsnorm_backward(dqkv_TQ, saved.qkv_raw_TQ, shape, q_end, k_end,
                              config.norm.weight(weights.k_norm_E), saved.k_rstd_TG, grads.k_norm_E,
                              update.mode);
  }

  // (2) qkv = input wqkv^T + bqkv
  if (!grads.bqkv_Q.empty()) ops.linear_backward_bias(dqkv_TQ, grads.bqkv_Q, update.mode);
  if (!grads.wqkv_QD.empty()) ops.linear_backward_weight(dqkv_TQ, input_TD, grads.wqkv_QD, update);
  lora_backward_output(ops, weights.lora_qkv, dqkv_TQ, scratch.lora);
  lora_backward_weights(ops, weights.lora_qkv, grads.lora_qkv, update.mode, dqkv_TQ, input_TD, scratch.lora);
  const TensorView dinput_TD = input_TD;  // which is no longer needed
  ops.linear_backward_input(dqkv_TQ, weights.wqkv_QD, dinput_TD, Update::kOverwrite);
  lora_backward_input(ops, weights.lora_qkv, scratch.lora, dinput_TD);
}

void attention_block_backward(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
                              const AttentionGrads& grads, WeightUpdate update, const SequenceInfo& sequences,
                              const AttentionSaved& saved, const AttentionScratch& scratch,
                              TensorView dx_TD) {
  // The sum x + y passes its gradient to both terms.
  const ConstTensorView dy_TD =
      leave_block_backward(ops, config.output, config.norm, weights.output_norm_D, dx_TD, saved.raw_TD,
                           saved.raw_statistics_T, scratch.draw_TD, grads.output_norm_D, update.mode);
  // norm is recomputed, and its gradient takes its place.
  const TensorView input_TD = enter_block(ops, saved.x_TD, /*residual_TD=*/{}, weights.norm_D, config.norm,
                                          scratch.norm_TD, scratch.statistics_T);
  self_attention_backward(ops, config, weights, grads, update, sequences, dy_TD, input_TD, saved, scratch);
  // (1) norm = rmsnorm(x)
  enter_block_backward(ops, input_TD, saved.x_TD, weights.norm_D, config.norm, scratch.statistics_T, dx_TD,
                       grads.norm_D, update.mode);
}

void self_attention_cached(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
                           const SequenceInfo& sequences, ConstTensorView input_TD,
                           const KeyValueCache& cache, int64_t cache_length, const AttentionSaved& saved,
                           const LoraScratch& lora, TensorView y_TD) {
  project_qkv(ops, config, weights, sequences, input_TD, saved, lora);
  ops.attention_cached(saved.qkv_TQ, config.shape, cache.k, cache.v, cache_length, weights.sinks_H,
                       saved.o_THE);
  project_output(ops, weights, sequences, saved, lora, raw_output(config, saved, y_TD));
  leave(ops, config, weights, saved, y_TD);
}

void attention_block_cached(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
                            const SequenceInfo& sequences, ConstTensorView residual_TD,
                            const KeyValueCache& cache, int64_t cache_length, const AttentionSaved& saved,
                            const AttentionScratch& scratch, TensorView y_TD) {
  const TensorView input_TD = enter_block(ops, saved.x_TD, residual_TD, weights.norm_D, config.norm,
                                          scratch.norm_TD, scratch.statistics_T);
  self_attention_cached(ops, config, weights, sequences, input_TD, cache, cache_length, saved, scratch.lora,
                        y_TD);
}

}  // namespace tessera
