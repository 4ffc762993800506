#include "model/blocks/mlp_block.h"

#include <algorithm>

#include "model/allocate.h"
#include "model/blocks/residual_norm.h"

namespace tessera {

TensorView allocate_gate_up(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens) {
  const int64_t halves = is_gated(config.activation) ? 2 : 1;
  return allocate_tensor(arena, dtype, {num_tokens, halves * config.intermediate_size});
}

void allocate_gate_up_and_raw(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens,
                              MlpSaved& saved) {
  saved.gate_up_TF2 = allocate_gate_up(arena, config, dtype, num_tokens);
  if (!block_output(config).has_norm) return;
  saved.raw_TD = allocate_tensor(arena, dtype, {num_tokens, config.hidden_size});
  saved.raw_statistics_T =
      allocate_tensor(arena, DType::kF32, norm_statistics_shape(config.norm, num_tokens));
}

MlpScratch allocate_mlp_scratch(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens,
                                bool with_gate_up) {
  const int64_t chunk_tokens = std::min(num_tokens, kMlpChunkTokens);
  MlpScratch scratch;
  scratch.norm_TD = allocate_tensor(arena, dtype, {num_tokens, config.hidden_size});
  scratch.statistics_T = allocate_tensor(arena, DType::kF32, norm_statistics_shape(config.norm, num_tokens));
  if (block_output(config).has_norm) {
    scratch.raw_CD = allocate_tensor(arena, dtype, {chunk_tokens, config.hidden_size});
    scratch.raw_statistics_C =
        allocate_tensor(arena, DType::kF32, norm_statistics_shape(config.norm, chunk_tokens));
  }
  if (block_output(config).changes())
    scratch.draw_CD = allocate_tensor(arena, dtype, {chunk_tokens, config.hidden_size});
  if (with_gate_up) scratch.gate_up_CF2 = allocate_gate_up(arena, config, dtype, chunk_tokens);
  scratch.h_CF = allocate_tensor(arena, dtype, {chunk_tokens, config.intermediate_size});
  if (config.dropout.mlp_output > 0)
    scratch.ddropped_CD = allocate_tensor(arena, dtype, {chunk_tokens, config.hidden_size});
  return scratch;
}

namespace {

// Tokens [begin, end) of a batch, and where their wide activations are.
struct MlpChunk {
  int64_t begin, end;
  TensorView gate_up_CF2, h_CF;
  TensorView raw_CD, raw_statistics_C, draw_CD, ddropped_CD;  // empty if there are none
  const LoraScratch& lora;
  Dropout of_hidden, of_output;

  TensorView of(TensorView all_TD) const { return all_TD.rows(begin, end); }
};

template <typename Body>
void for_each_chunk(int64_t num_tokens, const MlpSaved& saved, const MlpScratch& scratch, const Body& body) {
  for (int64_t begin = 0; begin < num_tokens; begin += kMlpChunkTokens) {
    const int64_t end = std::min(begin + kMlpChunkTokens, num_tokens);
    const bool is_kept = !saved.gate_up_TF2.empty();
    LoraScratch lora = scratch.lora;
    Dropout dropout;
    if (lora.dropout != nullptr) {
      dropout = lora.dropout->rows(begin, end);
      lora.dropout = &dropout;
    }
    const auto part = [count = end - begin](TensorView of_chunk) {
      return of_chunk.empty() ? of_chunk : of_chunk.rows(0, count);
    };
    const bool keeps_raw = !saved.raw_TD.empty();
    body(MlpChunk{begin, end, is_kept ? saved.gate_up_TF2.rows(begin, end) : part(scratch.gate_up_CF2),
                  part(scratch.h_CF), keeps_raw ? saved.raw_TD.rows(begin, end) : part(scratch.raw_CD),
                  keeps_raw ? saved.raw_statistics_T.rows(begin, end) : part(scratch.raw_statistics_C),
                  part(scratch.draw_CD), part(scratch.ddropped_CD), lora, scratch.of_hidden.rows(begin, end),
                  scratch.of_output.rows(begin, end)});
  }
}

// (3)
void activate(Ops& ops, const MlpBlockConfig& config, const MlpChunk& chunk) {
  if (config.activation == Activation::kGatedSilu) {
    ops.swiglu(chunk.gate_up_CF2, chunk.h_CF);
  } else {
    ops.activation(config.activation, chunk.gate_up_CF2, chunk.h_CF);
  }
  drop_in_place(ops, chunk.of_hidden, chunk.h_CF);
}

// (4), before the norm of the output or its factor.
void project_down(Ops& ops, const MlpWeights& weights, const MlpChunk& chunk, TensorView to_CD) {
  ops.linear(chunk.h_CF, weights.w2_DF, weights.b2_D, to_CD);
  lora_forward(ops, weights.lora_2, chunk.h_CF, chunk.lora, to_CD);
  drop_in_place(ops, chunk.of_output, to_CD);
}

// The gradient of (4) before dropout and the norm or factor, from that of y.
ConstTensorView output_backward(Ops& ops, const MlpBlockConfig& config, const MlpWeights& weights,
                                const MlpGrads& grads, const MlpSaved& saved, const MlpChunk& chunk,
                                TensorView dy_CD, Update update) {
  if (config.output.has_norm && saved.raw_TD.empty()) {
    activate(ops, config, chunk);
    project_down(ops, weights, chunk, chunk.raw_CD);
    norm_forward(ops, config.norm, chunk.raw_CD, weights.output_norm_D, chunk.draw_CD,
                 chunk.raw_statistics_C);
  }
  const TensorView draw_CD =
      leave_block_backward(ops, config.output, config.norm, weights.output_norm_D, dy_CD, chunk.raw_CD,
                           chunk.raw_statistics_C, chunk.draw_CD, grads.output_norm_D, update);
  return dropped_gradient(ops, chunk.of_output, draw_CD, chunk.ddropped_CD);
}

}  // namespace

void mlp_forward(Ops& ops, const MlpBlockConfig& config, const MlpWeights& weights, TensorView input_TD,
                 const MlpSaved& saved, const MlpScratch& scratch, TensorView y_TD) {
  for_each_chunk(input_TD.dim(0), saved, scratch, [&](const MlpChunk& chunk) {
    ops.linear(chunk.of(input_TD), weights.w1_F2D, weights.b1_F2, chunk.gate_up_CF2);
    lora_forward(ops, weights.lora_1, chunk.of(input_TD), chunk.lora, chunk.gate_up_CF2);
    activate(ops, config, chunk);
    const TensorView y_CD = chunk.of(y_TD), raw_CD = config.output.has_norm ? chunk.raw_CD : y_CD;
    project_down(ops, weights, chunk, raw_CD);
    leave_block(ops, config.output, config.norm, weights.output_norm_D, raw_CD, y_CD, chunk.raw_statistics_C);
  });
}

void mlp_block_forward(Ops& ops, const MlpBlockConfig& config, const MlpWeights& weights,
                       ConstTensorView residual_TD, const MlpSaved& saved, const MlpScratch& scratch,
                       TensorView y_TD) {
  const TensorView input_TD = enter_block(ops, saved.x_TD, residual_TD, weights.norm_D, config.norm,
                                          scratch.norm_TD, scratch.statistics_T);
  mlp_forward(ops, config, weights, input_TD, saved, scratch, y_TD);
}

void mlp_backward(Ops& ops, const MlpBlockConfig& config, const MlpWeights& weights, const MlpGrads& grads,
                  WeightUpdate update, TensorView dy_TD, TensorView input_TD, const MlpSaved& saved,
                  const MlpScratch& scratch) {
  const int64_t num_tokens = input_TD.dim(0);
  const bool has_plain_output = !config.output.changes() && !scratch.of_output.drops();
  if (!grads.b2_D.empty() && has_plain_output) ops.linear_backward_bias(dy_TD, grads.b2_D, update.mode);
  for_each_chunk(num_tokens, saved, scratch, [&](const MlpChunk& chunk) {
    const WeightUpdate of_chunk = {chunk.begin == 0 ? update.mode : Update::kAdd,
                                   chunk.end == num_tokens ? update.squares : nullptr};
    const ConstTensorView input_CD = chunk.of(input_TD);
    if (saved.gate_up_TF2.empty()) {
      ops.linear(input_CD, weights.w1_F2D, weights.b1_F2, chunk.gate_up_CF2);
      lora_forward(ops, weights.lora_1, input_CD, chunk.lora, chunk.gate_up_CF2);
    }

    // (4) y = h w2^T + b2
    const ConstTensorView dy_CD =
        output_backward(ops, config, weights, grads, saved, chunk, chunk.of(dy_TD), of_chunk.mode);
    if (!grads.b2_D.empty() && !has_plain_output) ops.linear_backward_bias(dy_CD, grads.b2_D, of_chunk.mode);
    const TensorView dh_CF = chunk.h_CF;
    ops.linear_backward_input(dy_CD, weights.w2_DF, dh_CF, Update::kOverwrite);
    lora_backward_output(ops, weights.lora_2, dy_CD, chunk.lora);
    lora_backward_input(ops, weights.lora_2, chunk.lora, dh_CF);
    drop_in_place(ops, chunk.of_hidden, dh_CF);

    // (3) h = silu(gate) * up, with h recomputed in the same pass for the weight gradient of (4)
    const TensorView dgate_up_CF2 = chunk.gate_up_CF2;  // in place
    const TensorView h_CF = chunk.h_CF;                 // in place of dh
    if (config.activation == Activation::kGatedSilu) {
      ops.swiglu_backward(dh_CF, chunk.gate_up_CF2, dgate_up_CF2, h_CF);
    } else {
      ops.activation_backward(config.activation, dh_CF, chunk.gate_up_CF2, dgate_up_CF2, h_CF);
    }
    drop_in_place(ops, chunk.of_hidden, h_CF);
    if (!grads.w2_DF.empty()) ops.linear_backward_weight(dy_CD, h_CF, grads.w2_DF, of_chunk);
    lora_backward_weights(ops, weights.lora_2, grads.lora_2, of_chunk.mode, dy_CD, h_CF, chunk.lora);

    // (2) gate_up = input w1^T + b1
    if (!grads.b1_F2.empty()) ops.linear_backward_bias(dgate_up_CF2, grads.b1_F2, of_chunk.mode);
    if (!grads.w1_F2D.empty()) ops.linear_backward_weight(dgate_up_CF2, input_CD, grads.w1_F2D, of_chunk);
    lora_backward_output(ops, weights.lora_1, dgate_up_CF2, chunk.lora);
    lora_backward_weights(ops, weights.lora_1, grads.lora_1, of_chunk.mode, dgate_up_CF2, input_CD,
                          chunk.lora);
    const TensorView dinput_CD = chunk.of(input_TD);  // which is no longer needed
    ops.linear_backward_input(dgate_up_CF2, weights.w1_F2D, dinput_CD, Update::kOverwrite);
    lora_backward_input(ops, weights.lora_1, chunk.lora, dinput_CD);
  });
}

void mlp_block_backward(Ops& ops, const MlpBlockConfig& config, const MlpWeights& weights,
                        const MlpGrads& grads, WeightUpdate update, const MlpSaved& saved,
                        const MlpScratch& scratch, TensorView dx_TD) {
  // The sum x + y passes its gradient to both terms. norm is recomputed, and its gradient takes its place.
  const TensorView input_TD = enter_block(ops, saved.x_TD, /*residual_TD=*/{}, weights.norm_D, config.norm,
                                          scratch.norm_TD, scratch.statistics_T);
  mlp_backward(ops, config, weights, grads, update, dx_TD, input_TD, saved, scratch);
  // (1) norm = rmsnorm(x)
  enter_block_backward(ops, input_TD, saved.x_TD, weights.norm_D, config.norm, scratch.statistics_T, dx_TD,
                       grads.norm_D, update.mode);
}

}  // namespace tessera
