// The attention half of a decoder layer, forward and backward over packed tokens.
//
//   forward:  (1) x += residual,  norm = rmsnorm(x)            (OLMo 2: norm = x)
//             (2) qkv = norm wqkv^T + bqkv
//             (3) q, k = rmsnorm per head                    (Qwen3; OLMo 2: over all heads)
//             (4) q, k = rope(q, k, position)                (not in T5, nor in some layers of SmolLM3)
//             (5) o = attention(q, k, v)                     (T5: with a bias by position, both directions;
//                                                             GPT-OSS: with sinks)
//             (6) y = o wo^T + bo                            (OLMo 2: y = rmsnorm of it; Granite: a multiple)
//
// Training may drop some of the probabilities of (5) and of y (SequenceInfo).
//
// Adapters (model/lora.h) add to (2) and (6). The weights then have no gradients: their views are empty.
//
// The stream after the block is x + y; the next block adds them (residual_norm.h). Activation gradients are
// overwritten (=) unless stated otherwise.
#pragma once

#include <cstdint>
#include <span>

#include "formats/huggingface/model_config.h"
#include "model/blocks/kept_outputs.h"
#include "model/blocks/norm.h"
#include "model/dropout_place.h"
#include "model/lora.h"
#include "ops/ops.h"
#include "tensor/arena.h"

namespace tessera {

// Views into the flat arrays; optional tensors are empty if the model has none.
template <typename View, typename Matrix = View>
struct AttentionTensors {
  View norm_D;         // input_layernorm; empty: the stream is the input
  Matrix wqkv_QD;      // q_proj, k_proj, v_proj
  View bqkv_Q;         // optional
  View q_norm_E;       // optional, together with k_norm_E
  View k_norm_E;       //
  Matrix wo_DHE;       // o_proj [D, H E]
  View bo_D;           // optional
  View sinks_H;        // optional
  View output_norm_D;  // optional
  LoraTensors<View> lora_qkv;
  LoraTensors<View> lora_o;
};
using AttentionWeights = AttentionTensors<ConstTensorView, LinearWeight>;
using AttentionGrads = AttentionTensors<TensorView>;

struct AttentionBlockConfig {
  AttentionShape shape;
  NormConfig norm = {};
  LayerRope rope = LayerRope::kGlobal;  // (4)
  bool causal = true;
  BlockOutput output = {};

  bool has_sinks = false;
};
AttentionBlockConfig attention_block_config(const ModelConfig& config, int64_t layer);

// Positions and sequence boundaries of a batch's tokens, and what is dropped of them.
struct SequenceInfo {
  std::span<const int32_t> cu_seqlens;  // [num_sequences + 1]
  std::span<const int32_t> positions;   // [T]
  RopeTable rope;
  RopeTable local_rope = {};  // of layers that have one of their own
  const PositionBias* bias = nullptr;
  TensorView dbias_BH = {};  // F32, where the gradient of its table goes; empty: not wanted
  Update dbias_update = Update::kOverwrite;
  Dropout of_probabilities = {};
  Dropout of_output = {};

  // Whether (5) needs general_attention(), which is slower.
  bool is_general(const AttentionBlockConfig& config) const {
    return !config.causal || bias != nullptr || of_probabilities.drops() || config.has_sinks;
  }
};

// Kept from forward to backward, per token: A (D + Q + H E) + 4 H bytes, plus A Q + 4 (H + G) with head norms
// and A D + 4 with a norm of the output (A = 2 or 4 bytes per activation). norm and its rstd are recomputed:
// a pass over memory is cheaper than keeping A D bytes in every layer.
struct AttentionSaved {
  TensorView x_TD;        // the residual stream
  TensorView qkv_raw_TQ;  // before the head norms; empty without them
  TensorView q_rstd_TH;   // F32, empty without head norms
  TensorView k_rstd_TG;   // F32, empty without head norms
  TensorView qkv_TQ;      // after rope
  TensorView o_THE;
  TensorView lse_HT;  // F32
  // Before the norm of the output, and its statistics; empty without one.
  TensorView raw_TD;
  TensorView raw_statistics_T;  // F32
};

// Needed only while the block runs.
struct AttentionScratch {
  TensorView norm_TD;
  TensorView statistics_T;  // F32
  TensorView draw_TD;       // backward, if the output is changed
  TensorView ddropped_TD;   // backward, if some of the output is dropped
  TensorView do_THE;        // backward
  TensorView dqkv_TQ;       // backward
  LoraScratch lora;
};

// Allocate the views of `saved` that (2) to (4) write, and those that (5) writes.
void allocate_qkv(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens,
                  AttentionSaved& saved);
void allocate_attention_output(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens,
                               AttentionSaved& saved);
// raw_TD and its statistics, if the output of (6) is normalised.
void allocate_raw_output(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens,
                         AttentionSaved& saved);
AttentionScratch allocate_attention_scratch(Arena& arena, const ModelConfig& config, DType dtype,
                                            int64_t num_tokens, bool training);

// (2) to (6) with any input in place of norm. Only the views of `saved` that these write are used, and of
// `scratch` what backward needs.
void self_attention_forward(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
                            const SequenceInfo& sequences, ConstTensorView input_TD,
                            const AttentionSaved& saved, const LoraScratch& lora, TensorView y_TD);
// Computes again what is not in `kept`; input_TD is read for qkv alone. y_TD as above, unless the stream is
// kept.
void self_attention_recompute(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
                              const SequenceInfo& sequences, const KeptOutputs& kept,
                              ConstTensorView input_TD, const AttentionSaved& saved, const LoraScratch& lora,
                              TensorView y_TD);
// On return the gradient of the input is in its place. dy_TD may not share its memory.
void self_attention_backward(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
                             const AttentionGrads& grads, WeightUpdate update, const SequenceInfo& sequences,
                             ConstTensorView dy_TD, TensorView input_TD, const AttentionSaved& saved,
                             const AttentionScratch& scratch);

// saved.x_TD holds the output of the previous block, residual_TD the stream that bypassed it (empty: x is
// complete). y_TD may share the memory of residual_TD but not of x_TD.
void attention_block_forward(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
                             const SequenceInfo& sequences, ConstTensorView residual_TD,
                             const AttentionSaved& saved, const AttentionScratch& scratch, TensorView y_TD);

// Recomputes what is not in `kept`, once saved.x_TD is complete: y_TD receives the stream after the block.
void attention_block_recompute(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
                               const SequenceInfo& sequences, const KeptOutputs& kept,
                               const AttentionSaved& saved, const AttentionScratch& scratch, TensorView y_TD);

// On entry dx_TD holds the gradient of the stream after the block, x + y; on return the gradient of x. Weight
// gradients are overwritten or added to, according to `update`.
void attention_block_backward(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
                              const AttentionGrads& grads, WeightUpdate update, const SequenceInfo& sequences,
                              const AttentionSaved& saved, const AttentionScratch& scratch, TensorView dx_TD);

// Keys and values of the tokens so far, each [capacity, G E].
struct KeyValueCache {
  TensorView k;
  TensorView v;
};

// (2) to (6) for tokens that follow cache_length others, with any input in place of norm.
void self_attention_cached(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
                           const SequenceInfo& sequences, ConstTensorView input_TD,
                           const KeyValueCache& cache, int64_t cache_length, const AttentionSaved& saved,
                           const LoraScratch& lora, TensorView y_TD);
// Like forward, for tokens that follow cache_length others of the same sequence; (5) appends to the cache.
// sequences.cu_seqlens is not used.
void attention_block_cached(Ops& ops, const AttentionBlockConfig& config, const AttentionWeights& weights,
                            const SequenceInfo& sequences, ConstTensorView residual_TD,
                            const KeyValueCache& cache, int64_t cache_length, const AttentionSaved& saved,
                            const AttentionScratch& scratch, TensorView y_TD);

}  // namespace tessera
