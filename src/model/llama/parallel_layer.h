// A decoder layer whose attention and MLP read the same norm (Cohere 2):
//
//   forward:  (1) x += residual,  norm = norm(x)
//             (2) a = attention(norm)
//             (3) y = mlp(norm),  the stream after the layer is (x + a) + y
//
// The norm is attention's; the MLP has none. Buffers and contracts are those of decoder_layer.h: y is this
// layer's output, and x + a, which saved.mlp.x_TD holds, the stream that bypasses it.
#pragma once

#include "model/llama/decoder_layer.h"

namespace tessera {

void parallel_layer_forward(Ops& ops, const LayerConfig& config, const LayerWeights& weights,
                            const SequenceInfo& sequences, ConstTensorView residual_TD,
                            const LayerSaved& saved, const LayerScratch& scratch, TensorView y_TD);

// Recomputes what backward needs: not the stream.
void parallel_layer_recompute(Ops& ops, const LayerConfig& config, const LayerWeights& weights,
                              const SequenceInfo& sequences, const KeptOutputs& kept, const LayerSaved& saved,
                              const LayerScratch& scratch);

// saved.mlp.x_TD is overwritten.
void parallel_layer_backward(Ops& ops, const LayerConfig& config, const LayerWeights& weights,
                             const LayerGrads& grads, WeightUpdate update, const SequenceInfo& sequences,
                             const LayerSaved& saved, const LayerScratch& scratch, TensorView dx_TD);

// Like forward, with keys and values appended to a cache (attention_block_cached()).
void parallel_layer_cached(Ops& ops, const LayerConfig& config, const LayerWeights& weights,
                           const SequenceInfo& sequences, ConstTensorView residual_TD,
                           const KeyValueCache& cache, int64_t cache_length, const LayerSaved& saved,
                           const LayerScratch& scratch, TensorView y_TD);

}  // namespace tessera
