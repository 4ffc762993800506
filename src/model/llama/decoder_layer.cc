#include "model/llama/decoder_layer.h"

#include <algorithm>

#include "model/allocate.h"
#include "model/llama/parallel_layer.h"

namespace tessera {
LayerScratch allocate_layer_scratch(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens,
                                    bool training, bool with_gate_up, int64_t arriving_rows,
                                    const LoraLimits& lora) {
  LayerScratch scratch;
  const LoraScratch of_adapters = allocate_lora_scratch(arena, lora, dtype, num_tokens, training);
  const Arena::Mark mark = arena.mark();
  scratch.attention = allocate_attention_scratch(arena, config, dtype, num_tokens, training);
  const int64_t attention_end = arena.used_bytes();
  arena.release(mark);
  scratch.mlp = allocate_mlp_scratch(arena, config, dtype, num_tokens, with_gate_up);
  int64_t end = std::max(attention_end, arena.used_bytes());
  if (config.experts) {
    arena.release(mark);
    scratch.moe =
        allocate_moe_scratch(arena, config, dtype, num_tokens, training, with_gate_up, arriving_rows);
    end = std::max(end, arena.used_bytes());
  }
  arena.release({end});
  scratch.attention.lora = scratch.mlp.lora = scratch.moe.lora = of_adapters;
  return scratch;
}

void layer_mlp_forward(Ops& ops, const LayerConfig& config, const LayerWeights& weights,
                       ConstTensorView residual_TD, const LayerSaved& saved, const LayerScratch& scratch,
                       TensorView y_TD) {
  if (weights.moe.empty()) {
    mlp_block_forward(ops, config.mlp, weights.mlp, residual_TD, saved.mlp, scratch.mlp, y_TD);
  } else {
    moe_block_forward(ops, config.moe, weights.moe, residual_TD, saved.mlp, scratch.moe, y_TD);
  }
}

void decoder_layer_forward(Ops& ops, const LayerConfig& config, const LayerWeights& weights,
                           const SequenceInfo& sequences, ConstTensorView residual_TD,
                           const LayerSaved& saved, const LayerScratch& scratch, TensorView y_TD) {
  if (config.is_parallel)
    return parallel_layer_forward(ops, config, weights, sequences, residual_TD, saved, scratch, y_TD);
  attention_block_forward(ops, config.attention, weights.attention, sequences, residual_TD, saved.attention,
                          scratch.attention, saved.mlp.x_TD);
  layer_mlp_forward(ops, config, weights, saved.attention.x_TD, saved, scratch, y_TD);
}

void decoder_layer_cached(Ops& ops, const LayerConfig& config, const LayerWeights& weights,
                          const SequenceInfo& sequences, ConstTensorView residual_TD,
                          const KeyValueCache& cache, int64_t cache_length, const LayerSaved& saved,
                          const LayerScratch& scratch, TensorView y_TD) {
  if (config.is_parallel)
    return parallel_layer_cached(ops, config, weights, sequences, residual_TD, cache, cache_length, saved,
                                 scratch, y_TD);
  attention_block_cached(ops, config.attention, weights.attention, sequences, residual_TD, cache,
                         cache_length, saved.attention, scratch.attention, saved.mlp.x_TD);
  layer_mlp_forward(ops, config, weights, saved.attention.x_TD, saved, scratch, y_TD);
}

void decoder_layer_recompute(Ops& ops, const LayerConfig& config, const LayerWeights& weights,
                             const SequenceInfo& sequences, const KeptOutputs& kept, const LayerSaved& saved,
                             const LayerScratch& scratch) {
  if (config.is_parallel)
    return parallel_layer_recompute(ops, config, weights, sequences, kept, saved, scratch);
  attention_block_recompute(ops, config.attention, weights.attention, sequences, kept, saved.attention,
                            scratch.attention, saved.mlp.x_TD);
}

void decoder_layer_backward(Ops& ops, const LayerConfig& config, const LayerWeights& weights,
                            const LayerGrads& grads, WeightUpdate update, const SequenceInfo& sequences,
                            const LayerSaved& saved, const LayerScratch& scratch, TensorView dx_TD) {
  if (config.is_parallel)
    return parallel_layer_backward(ops, config, weights, grads, update, sequences, saved, scratch, dx_TD);
  if (weights.moe.empty()) {
    mlp_block_backward(ops, config.mlp, weights.mlp, grads.mlp, update, saved.mlp, scratch.mlp, dx_TD);
  } else {
    moe_block_backward(ops, config.moe, weights.moe, grads.moe, update, saved.mlp, scratch.moe, dx_TD);
  }
  attention_block_backward(ops, config.attention, weights.attention, grads.attention, update, sequences,
                           saved.attention, scratch.attention, dx_TD);
}

}  // namespace tessera
