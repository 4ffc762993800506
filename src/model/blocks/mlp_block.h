// The feed-forward half of a decoder layer, forward and backward.
//
//   forward:  (1) x += residual,  norm = rmsnorm(x)      (OLMo 2: norm = x)
//             (2) gate_up = norm w1^T + b1           (gate_proj and up_proj in one product)
//             (3) h = silu(gate) * up                (or another Activation; without a gate, P = F columns)
//             (4) y = h w2^T + b2                    (down_proj; OLMo 2: y = rmsnorm of it; Granite: a
//                                                    multiple)
//
// Training may drop some of h and of y (MlpScratch).
//
// Adapters (model/lora.h) add to (2) and (4). The weights then have no gradients: their views are empty.
//
// The stream after the block is x + y; the next block adds them (residual_norm.h). Activation gradients are
// overwritten (=) unless stated otherwise.
//
// (2) to (4) and their backward run over kMlpChunkTokens tokens at a time: the widest activations of a layer
// exist for one chunk only, unless gate_up is kept for backward. The results depend on the number of tokens
// alone, not on what is kept.
#pragma once

#include <cstdint>

#include "formats/huggingface/model_config.h"
#include "model/blocks/norm.h"
#include "model/dropout_place.h"
#include "model/lora.h"
#include "ops/ops.h"
#include "tensor/arena.h"

namespace tessera {

// Views into the flat arrays; biases are empty if the model has none.
template <typename View, typename Matrix = View>
struct MlpTensors {
  View norm_D;         // post_attention_layernorm; empty: the stream is the input
  Matrix w1_F2D;       // gate_proj, up_proj [P, D], P = 2F if there is a gate
  View b1_F2;          // optional
  Matrix w2_DF;        // down_proj
  View b2_D;           // optional
  View output_norm_D;  // optional
  LoraTensors<View> lora_1;
  LoraTensors<View> lora_2;
};
using MlpWeights = MlpTensors<ConstTensorView, LinearWeight>;
using MlpGrads = MlpTensors<TensorView>;

// The products sum a weight gradient over as many tokens per pass on AMX (gemm_amx.cc), so that chunks add
// no traffic there and leave its bits as they are. Elsewhere a chunk reads and writes the gradient once more:
// 8 bytes per 8192 operations.
inline constexpr int64_t kMlpChunkTokens = 4096;

// Kept from forward to backward, per token: A (D + 2F) bytes (A = 2 or 4 bytes per activation). norm and h
// are recomputed: a pass over memory is cheaper than keeping A (D + F) bytes in every layer.
struct MlpSaved {
  TensorView x_TD;         // the residual stream
  TensorView gate_up_TF2;  // backward leaves its gradient here; empty: backward recomputes it
  // (4) before the norm of the output, and its statistics: kept with gate_up, A D + 4 bytes per token; empty:
  // there is none, or backward recomputes it.
  TensorView raw_TD;
  TensorView raw_statistics_T;  // F32
};

struct MlpBlockConfig {
  NormConfig norm = {};
  Activation activation = Activation::kGatedSilu;
  BlockOutput output = {};
};
inline MlpBlockConfig mlp_block_config(const ModelConfig& config) {
  return {NormConfig(config), config.activation, block_output(config)};
}

// Needed only while the block runs.
struct MlpScratch {
  TensorView norm_TD;
  TensorView statistics_T;  // F32
  // For a chunk whose output is normalised or scaled: (4) before that, its statistics and its gradient.
  TensorView raw_CD, raw_statistics_C, draw_CD;
  TensorView gate_up_CF2;  // C tokens of a chunk; empty if every layer keeps its own
  TensorView h_CF;
  TensorView ddropped_CD;  // if some of y is dropped: its gradient
  LoraScratch lora;
  Dropout of_hidden = {};  // of the pass
  Dropout of_output = {};
};

TensorView allocate_gate_up(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens);
// gate_up and raw.
void allocate_gate_up_and_raw(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens,
                              MlpSaved& saved);
MlpScratch allocate_mlp_scratch(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens,
                                bool with_gate_up);

// (2) to (4) with any input in place of norm. Of `saved` only gate_up is used, and of `scratch` what is not
// for the norm.
void mlp_forward(Ops& ops, const MlpBlockConfig& config, const MlpWeights& weights, TensorView input_TD,
                 const MlpSaved& saved, const MlpScratch& scratch, TensorView y_TD);
// On return the gradient of the input is in its place. dy_TD may not share its memory.
void mlp_backward(Ops& ops, const MlpBlockConfig& config, const MlpWeights& weights, const MlpGrads& grads,
                  WeightUpdate update, TensorView dy_TD, TensorView input_TD, const MlpSaved& saved,
                  const MlpScratch& scratch);

// saved.x_TD holds the output of the previous block, residual_TD the stream that bypassed it. y_TD may share
// the memory of residual_TD but not of x_TD.
void mlp_block_forward(Ops& ops, const MlpBlockConfig& config, const MlpWeights& weights,
                       ConstTensorView residual_TD, const MlpSaved& saved, const MlpScratch& scratch,
                       TensorView y_TD);

// On entry dx_TD holds the gradient of the stream after the block, x + y; on return the gradient of x. Weight
// gradients are overwritten or added to, according to `update`.
void mlp_block_backward(Ops& ops, const MlpBlockConfig& config, const MlpWeights& weights,
                        const MlpGrads& grads, WeightUpdate update, const MlpSaved& saved,
                        const MlpScratch& scratch, TensorView dx_TD);

}  // namespace tessera
