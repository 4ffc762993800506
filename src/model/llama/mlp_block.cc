#include "model/llama/mlp_block.h"

#include "model/allocate.h"
#include "model/llama/residual_norm.h"

namespace tessera {

MlpSaved allocate_mlp_saved(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens) {
  MlpSaved saved;
  saved.x_TD = allocate_tensor(arena, dtype, {num_tokens, config.hidden_size});
  saved.gate_up_TF2 = allocate_tensor(arena, dtype, {num_tokens, 2 * config.intermediate_size});
  return saved;
}

MlpScratch allocate_mlp_scratch(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens) {
  MlpScratch scratch;
  scratch.norm_TD = allocate_tensor(arena, dtype, {num_tokens, config.hidden_size});
  scratch.rstd_T = allocate_tensor(arena, DType::kF32, {num_tokens});
  scratch.h_TF = allocate_tensor(arena, dtype, {num_tokens, config.intermediate_size});
  return scratch;
}

void mlp_block_forward(Ops& ops, float norm_eps, const MlpWeights& weights, ConstTensorView residual_TD,
                       const MlpSaved& saved, const MlpScratch& scratch, TensorView y_TD) {
  residual_norm(ops, saved.x_TD, residual_TD, weights.norm_D, norm_eps, scratch.norm_TD, scratch.rstd_T);
  ops.linear(scratch.norm_TD, weights.w1_F2D, weights.b1_F2, saved.gate_up_TF2);
  lora_forward(ops, weights.lora_1, scratch.norm_TD, scratch.lora, saved.gate_up_TF2);
  if (y_TD.empty()) return;
  ops.swiglu(saved.gate_up_TF2, scratch.h_TF);
  ops.linear(scratch.h_TF, weights.w2_DF, weights.b2_D, y_TD);
  lora_forward(ops, weights.lora_2, scratch.h_TF, scratch.lora, y_TD);
}

void mlp_block_backward(Ops& ops, float norm_eps, const MlpWeights& weights, const MlpGrads& grads,
                        WeightUpdate update, const MlpSaved& saved, const MlpScratch& scratch,
                        TensorView dx_TD) {
  const ConstTensorView dy_TD = dx_TD;  // the sum x + y passes its gradient to both terms

  // (4) y = h w2^T + b2
  if (!grads.b2_D.empty()) ops.linear_backward_bias(dy_TD, grads.b2_D, update.mode);
  const TensorView dh_TF = scratch.h_TF;
  ops.linear_backward_input(dy_TD, weights.w2_DF, dh_TF, Update::kOverwrite);
  lora_backward_output(ops, weights.lora_2, dy_TD, scratch.lora);
  lora_backward_input(ops, weights.lora_2, scratch.lora, dh_TF);

  // (3) h = silu(gate) * up, with h recomputed in the same pass for the weight gradient of (4)
  const TensorView dgate_up_TF2 = saved.gate_up_TF2;  // in place
  const TensorView h_TF = scratch.h_TF;               // in place of dh
  ops.swiglu_backward(dh_TF, saved.gate_up_TF2, dgate_up_TF2, h_TF);
  if (!grads.w2_DF.empty()) ops.linear_backward_weight(dy_TD, h_TF, grads.w2_DF, update);
  lora_backward_weights(ops, weights.lora_2, grads.lora_2, update.mode, dy_TD, h_TF, scratch.lora);

  // (2) gate_up = norm w1^T + b1, with norm recomputed
  ops.rmsnorm(saved.x_TD, weights.norm_D, norm_eps, scratch.norm_TD, scratch.rstd_T);
  if (!grads.b1_F2.empty()) ops.linear_backward_bias(dgate_up_TF2, grads.b1_F2, update.mode);
  if (!grads.w1_F2D.empty()) {
    ops.linear_backward_weight(dgate_up_TF2, scratch.norm_TD, grads.w1_F2D, update);
  }
  lora_backward_output(ops, weights.lora_1, dgate_up_TF2, scratch.lora);
  lora_backward_weights(ops, weights.lora_1, grads.lora_1, update.mode, dgate_up_TF2, scratch.norm_TD,
                        scratch.lora);
  const TensorView dnorm_TD = scratch.norm_TD;  // norm is no longer needed
  ops.linear_backward_input(dgate_up_TF2, weights.w1_F2D, dnorm_TD, Update::kOverwrite);
  lora_backward_input(ops, weights.lora_1, scratch.lora, dnorm_TD);

  // (1) norm = rmsnorm(x)
  ops.rmsnorm_backward(dnorm_TD, saved.x_TD, weights.norm_D, scratch.rstd_T, dx_TD, Update::kAdd,
                       grads.norm_D, update.mode);
}

}  // namespace tessera
