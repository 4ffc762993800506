// Attention of a decoder's layer to the output of the encoder, the memory, forward and backward over packed
// pairs: S tokens of the sources, U of the targets.
//
//   forward:  (1) x += residual,  norm = rmsnorm(x)
//             (2) q = norm wq^T
//             (3) kv = memory wkv^T
//             (4) o = attention(q, k, v), every target token to all of its source
//             (5) y = o wo^T
//
// Training may drop some of the weights of (4) and of y (CrossSequences).
//
// Adapters (model/lora.h) add to (2), (3) and (5). The weights then have no gradients: their views are empty.
// The stream after the block is x + y; the next block adds them (residual_norm.h).
#pragma once

#include <cstdint>
#include <span>

#include "formats/huggingface/model_config.h"
#include "model/blocks/kept_outputs.h"
#include "model/dropout_place.h"
#include "model/lora.h"
#include "ops/ops.h"
#include "tensor/arena.h"

namespace tessera {

template <typename View, typename Matrix = View>
struct CrossAttentionTensors {
  View norm_D;
  Matrix wq_QD;   // Q = H E
  Matrix wkv_KD;  // K = 2 H E
  Matrix wo_DQ;
  LoraTensors<View> lora_q;
  LoraTensors<View> lora_kv;
  LoraTensors<View> lora_o;
};
using CrossAttentionWeights = CrossAttentionTensors<ConstTensorView, LinearWeight>;
using CrossAttentionGrads = CrossAttentionTensors<TensorView>;

// The sequences of a batch: row starts of the targets' tokens and of the memory's.
struct CrossSequences {
  std::span<const int32_t> cu_targets;  // [num_rows + 1]
  std::span<const int32_t> cu_sources;
  Dropout of_probabilities = {};
  Dropout of_output = {};
};

// Kept from forward to backward.
struct CrossAttentionSaved {
  TensorView x_UD;  // the residual stream
  TensorView q_UQ;
  TensorView kv_SK;
  TensorView o_UQ;
  TensorView lse_HU;  // F32
};

// Needed only while the block runs.
struct CrossAttentionScratch {
  TensorView norm_UD;
  TensorView rstd_U;       // F32
  TensorView do_UQ;        // backward
  TensorView dq_UQ;        // backward
  TensorView dkv_SK;       // backward
  TensorView ddropped_UD;  // backward, if some of y is dropped
  TensorView dmemory_SD;   // backward with quantized weights, whose products are not added up
  LoraScratch lora;
  LoraScratch lora_of_sources;  // the same memory
};

// Allocate the views of `saved` that (2) and (3) write, and those that (4) writes.
void allocate_cross_qkv(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_source_tokens,
                        int64_t num_target_tokens, CrossAttentionSaved& saved);
void allocate_cross_output(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_target_tokens,
                           CrossAttentionSaved& saved);
CrossAttentionScratch allocate_cross_attention_scratch(Arena& arena, const ModelConfig& config, DType dtype,
                                                       int64_t num_source_tokens, int64_t num_target_tokens,
                                                       bool training);

struct CrossAttentionConfig {
  AttentionShape shape;
  float norm_eps;
};

// saved.x_UD holds the output of the previous block, residual_UD the stream that bypassed it (empty: x is
// complete). y_UD may share the memory of residual_UD but not of x_UD.
void cross_attention_forward(Ops& ops, const CrossAttentionConfig& config,
                             const CrossAttentionWeights& weights, const CrossSequences& sequences,
                             ConstTensorView memory_SD, ConstTensorView residual_UD,
                             const CrossAttentionSaved& saved, const CrossAttentionScratch& scratch,
                             TensorView y_UD);

// Computes again what is not in `kept`, once saved.x_UD is complete: y_UD receives the stream after the
// block, unless that is kept.
void cross_attention_recompute(Ops& ops, const CrossAttentionConfig& config,
                               const CrossAttentionWeights& weights, const CrossSequences& sequences,
                               ConstTensorView memory_SD, const KeptOutputs& kept,
                               const CrossAttentionSaved& saved, const CrossAttentionScratch& scratch,
                               TensorView y_UD);

// On entry dx_UD holds the gradient of the stream after the block, x + y; on return the gradient of x.
// dmemory_SD is overwritten or added to, according to `memory_update`; weight gradients according to
// `update`.
void cross_attention_backward(Ops& ops, const CrossAttentionConfig& config,
                              const CrossAttentionWeights& weights, const CrossAttentionGrads& grads,
                              WeightUpdate update, const CrossSequences& sequences, ConstTensorView memory_SD,
                              const CrossAttentionSaved& saved, const CrossAttentionScratch& scratch,
                              TensorView dx_UD, TensorView dmemory_SD, Update memory_update);

}  // namespace tessera
