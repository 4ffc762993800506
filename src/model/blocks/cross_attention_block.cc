#include "model/blocks/cross_attention_block.h"

#include "model/allocate.h"
#include "model/blocks/residual_norm.h"

namespace tessera {
namespace {

int64_t heads_width(const ModelConfig& config) { return config.num_attention_heads * config.head_dim; }

AttentionInputs inputs_of(const CrossAttentionConfig& config, const CrossSequences& sequences,
                          const CrossAttentionSaved& saved) {
  AttentionInputs inputs;
  inputs.q_rows = saved.q_UQ;
  inputs.kv_rows = saved.kv_SK;
  inputs.v_column = config.shape.num_key_value_heads * config.shape.head_dim;
  inputs.cu_queries = sequences.cu_targets;
  inputs.cu_keys = sequences.cu_sources;
  inputs.causal = false;
  if (sequences.of_probabilities.drops()) inputs.dropout = &sequences.of_probabilities;
  return inputs;
}

}  // namespace

void allocate_cross_qkv(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_source_tokens,
                        int64_t num_target_tokens, CrossAttentionSaved& saved) {
  const int64_t width = heads_width(config);
  saved.q_UQ = allocate_tensor(arena, dtype, {num_target_tokens, width});
  saved.kv_SK = allocate_tensor(arena, dtype, {num_source_tokens, 2 * width});
}

void allocate_cross_output(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_target_tokens,
                           CrossAttentionSaved& saved) {
  saved.o_UQ = allocate_tensor(arena, dtype, {num_target_tokens, heads_width(config)});
  saved.lse_HU = allocate_tensor(arena, DType::kF32, {config.num_attention_heads, num_target_tokens});
}

CrossAttentionScratch allocate_cross_attention_scratch(Arena& arena, const ModelConfig& config, DType dtype,
                                                       int64_t num_source_tokens, int64_t num_target_tokens,
                                                       bool training) {
  const int64_t width = heads_width(config);
  CrossAttentionScratch scratch;
  scratch.norm_UD = allocate_tensor(arena, dtype, {num_target_tokens, config.hidden_size});
  scratch.rstd_U = allocate_tensor(arena, DType::kF32, {num_target_tokens});
  if (training) {
    scratch.do_UQ = allocate_tensor(arena, dtype, {num_target_tokens, width});
    scratch.dq_UQ = allocate_tensor(arena, dtype, {num_target_tokens, width});
    scratch.dkv_SK = allocate_tensor(arena, dtype, {num_source_tokens, 2 * width});
    if (config.dropout.attention_output > 0)
      scratch.ddropped_UD = allocate_tensor(arena, dtype, {num_target_tokens, config.hidden_size});
    if (config.base_quantization != Quantization::kNone)
      scratch.dmemory_SD = allocate_tensor(arena, dtype, {num_source_tokens, config.hidden_size});
  }
  return scratch;
}

namespace {

// (2) to (5), but for what is in `kept`.
void attend_to_memory(Ops& ops, const CrossAttentionConfig& config, const CrossAttentionWeights& weights,
                      const CrossSequences& sequences, ConstTensorView memory_SD, const KeptOutputs& kept,
                      const CrossAttentionSaved& saved, const CrossAttentionScratch& scratch,
                      TensorView y_UD) {
  if (!kept.qkv) {
    ops.linear(scratch.norm_UD, weights.wq_QD, /*bias_N=*/{}, saved.q_UQ);
    lora_forward(ops, weights.lora_q, scratch.norm_UD, scratch.lora, saved.q_UQ);
    ops.linear(memory_SD, weights.wkv_KD, /*bias_N=*/{}, saved.kv_SK);
    lora_forward(ops, weights.lora_kv, memory_SD, scratch.lora_of_sources, saved.kv_SK);
  }
  if (!kept.attention)
    ops.general_attention(inputs_of(config, sequences, saved), config.shape, saved.o_UQ, saved.lse_HU);
  if (kept.stream) return;
  ops.linear(saved.o_UQ, weights.wo_DQ, /*bias_N=*/{}, y_UD);
  lora_forward(ops, weights.lora_o, saved.o_UQ, scratch.lora, y_UD);
  drop_in_place(ops, sequences.of_output, y_UD);
}

}  // namespace

void cross_attention_forward(Ops& ops, const CrossAttentionConfig& config,
                             const CrossAttentionWeights& weights, const CrossSequences& sequences,
                             ConstTensorView memory_SD, ConstTensorView residual_UD,
                             const CrossAttentionSaved& saved, const CrossAttentionScratch& scratch,
                             TensorView y_UD) {
  residual_norm(ops, saved.x_UD, residual_UD, weights.norm_D, config.norm_eps, scratch.norm_UD,
                scratch.rstd_U);
  attend_to_memory(ops, config, weights, sequences, memory_SD, /*kept=*/{}, saved, scratch, y_UD);
}

void cross_attention_recompute(Ops& ops, const CrossAttentionConfig& config,
                               const CrossAttentionWeights& weights, const CrossSequences& sequences,
                               ConstTensorView memory_SD, const KeptOutputs& kept,
                               const CrossAttentionSaved& saved, const CrossAttentionScratch& scratch,
                               TensorView y_UD) {
  if (!kept.qkv) ops.rmsnorm(saved.x_UD, weights.norm_D, config.norm_eps, scratch.norm_UD, scratch.rstd_U);
  attend_to_memory(ops, config, weights, sequences, memory_SD, kept, saved, scratch, y_UD);
  if (!kept.stream) ops.add(y_UD, saved.x_UD);
}

void cross_attention_backward(Ops& ops, const CrossAttentionConfig& config,
                              const CrossAttentionWeights& weights, const CrossAttentionGrads& grads,
                              WeightUpdate update, const CrossSequences& sequences, ConstTensorView memory_SD,
                              const CrossAttentionSaved& saved, const CrossAttentionScratch& scratch,
                              TensorView dx_UD, TensorView dmemory_SD, Update memory_update) {
  // The sum x + y passes its gradient to both terms.
  const ConstTensorView dy_UD = dropped_gradient(ops, sequences.of_output, dx_UD, scratch.ddropped_UD);
  const auto lora_gradients = [&](const LoraWeights& lora, const LoraGrads& gradients, ConstTensorView dy,
                                  ConstTensorView x, const LoraScratch& memory, TensorView dx) {
    lora_backward_output(ops, lora, dy, memory);
    lora_backward_weights(ops, lora, gradients, update.mode, dy, x, memory);
    lora_backward_input(ops, lora, memory, dx);
  };

  // (5) y = o wo^T
  if (!grads.wo_DQ.empty()) ops.linear_backward_weight(dy_UD, saved.o_UQ, grads.wo_DQ, update);
  ops.linear_backward_input(dy_UD, weights.wo_DQ, scratch.do_UQ, Update::kOverwrite);
  lora_gradients(weights.lora_o, grads.lora_o, dy_UD, saved.o_UQ, scratch.lora, scratch.do_UQ);

  // (4) o = attention(q, k, v)
  ops.general_attention_backward(scratch.do_UQ, inputs_of(config, sequences, saved), saved.o_UQ, saved.lse_HU,
                                 config.shape, {scratch.dq_UQ, scratch.dkv_SK, {}});

  // (3) kv = memory wkv^T
  if (!grads.wkv_KD.empty()) ops.linear_backward_weight(scratch.dkv_SK, memory_SD, grads.wkv_KD, update);
  if (weights.wkv_KD.is_quantized() && memory_update == Update::kAdd) {
    ops.linear_backward_input(scratch.dkv_SK, weights.wkv_KD, scratch.dmemory_SD, Update::kOverwrite);
    ops.add(dmemory_SD, scratch.dmemory_SD);
  } else {
    ops.linear_backward_input(scratch.dkv_SK, weights.wkv_KD, dmemory_SD, memory_update);
  }
  lora_gradients(weights.lora_kv, grads.lora_kv, scratch.dkv_SK, memory_SD, scratch.lora_of_sources,
                 dmemory_SD);

  // (2) q = norm wq^T, with norm recomputed
  ops.rmsnorm(saved.x_UD, weights.norm_D, config.norm_eps, scratch.norm_UD, scratch.rstd_U);
  if (!grads.wq_QD.empty()) ops.linear_backward_weight(scratch.dq_UQ, scratch.norm_UD, grads.wq_QD, update);
  lora_backward_output(ops, weights.lora_q, scratch.dq_UQ, scratch.lora);
  lora_backward_weights(ops, weights.lora_q, grads.lora_q, update.mode, scratch.dq_UQ, scratch.norm_UD,
                        scratch.lora);
  const TensorView dnorm_UD = scratch.norm_UD;  // norm is no longer needed
  ops.linear_backward_input(scratch.dq_UQ, weights.wq_QD, dnorm_UD, Update::kOverwrite);
  lora_backward_input(ops, weights.lora_q, scratch.lora, dnorm_UD);

  // (1) norm = rmsnorm(x)
  ops.rmsnorm_backward(dnorm_UD, saved.x_UD, weights.norm_D, scratch.rstd_U, dx_UD, Update::kAdd,
                       grads.norm_D, update.mode);
}

}  // namespace tessera
