// One decoder layer: attention block, then MLP block or a mixture of experts, on the residual stream.
#pragma once

#include <cstdint>

#include "model/blocks/attention_block.h"
#include "model/blocks/mlp_block.h"
#include "model/blocks/moe_block.h"

namespace tessera {

template <typename View, typename Matrix = View>
struct LayerTensors {
  AttentionTensors<View, Matrix> attention;
  // One of the two has tensors.
  MlpTensors<View, Matrix> mlp;
  MoeTensors<View, Matrix> moe;
};
using LayerWeights = LayerTensors<ConstTensorView, LinearWeight>;
using LayerGrads = LayerTensors<TensorView>;

struct LayerConfig {
  AttentionBlockConfig attention;
  MlpBlockConfig mlp;
  MoeBlockConfig moe;
  bool is_parallel = false;  // parallel_layer.h
};
inline LayerConfig layer_config(const ModelConfig& config, int64_t layer) {
  return {attention_block_config(config, layer), mlp_block_config(config), moe_block_config(config),
          config.parallel_blocks};
}

struct LayerSaved {
  AttentionSaved attention;
  MlpSaved mlp;
};

// The blocks never run at the same time: their scratch shares memory.
struct LayerScratch {
  AttentionScratch attention;
  MlpScratch mlp;
  MoeScratch moe;
};
LayerScratch allocate_layer_scratch(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens,
                                    bool training, bool with_gate_up, int64_t arriving_rows,
                                    const LoraLimits& lora);

// `arriving_rows` as in allocate_moe_scratch().

// The MLP block, dense or not, as mlp_block_forward().
void layer_mlp_forward(Ops& ops, const LayerConfig& config, const LayerWeights& weights,
                       ConstTensorView residual_TD, const LayerSaved& saved, const LayerScratch& scratch,
                       TensorView y_TD);

// saved.attention.x_TD holds the output of the previous layer and residual_TD the stream that bypassed it
// (empty: x is complete). y_TD receives this layer's output; the stream that bypasses it is saved.mlp.x_TD.
// y_TD may share the memory of saved.attention.x_TD if no backward follows.
void decoder_layer_forward(Ops& ops, const LayerConfig& config, const LayerWeights& weights,
                           const SequenceInfo& sequences, ConstTensorView residual_TD,
                           const LayerSaved& saved, const LayerScratch& scratch, TensorView y_TD);

// Like forward, for tokens that follow cache_length others (attention_block_cached()).
void decoder_layer_cached(Ops& ops, const LayerConfig& config, const LayerWeights& weights,
                          const SequenceInfo& sequences, ConstTensorView residual_TD,
                          const KeyValueCache& cache, int64_t cache_length, const LayerSaved& saved,
                          const LayerScratch& scratch, TensorView y_TD);

// Recomputes from saved.attention.x_TD everything that is not in `kept` of `saved`, bit-identical to forward,
// except gate_up, which backward recomputes chunk by chunk.
void decoder_layer_recompute(Ops& ops, const LayerConfig& config, const LayerWeights& weights,
                             const SequenceInfo& sequences, const KeptOutputs& kept, const LayerSaved& saved,
                             const LayerScratch& scratch);

// On entry dx_TD holds the gradient of the stream after the layer, on return that of the stream before it.
// Weight gradients are overwritten or added to, according to `update`.
void decoder_layer_backward(Ops& ops, const LayerConfig& config, const LayerWeights& weights,
                            const LayerGrads& grads, WeightUpdate update, const SequenceInfo& sequences,
                            const LayerSaved& saved, const LayerScratch& scratch, TensorView dx_TD);

}  // namespace tessera
