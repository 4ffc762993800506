#include "model/llama/parallel_layer.h"

namespace tessera {
namespace {

// (1), once x is complete. Neither block's other scratch overlaps the norm, which both have in the same
// place.
void parallel_norm(Ops& ops, const LayerConfig& config, const LayerWeights& weights, const LayerSaved& saved,
                   const LayerScratch& scratch, TensorView norm_TD) {
  norm_forward(ops, config.attention.norm, saved.attention.x_TD, weights.attention.norm_D, norm_TD,
               scratch.attention.statistics_T);
}

// (3), once saved.mlp.x_TD holds a.
void finish_forward(Ops& ops, const LayerConfig& config, const LayerWeights& weights, const LayerSaved& saved,
                    const LayerScratch& scratch, TensorView y_TD) {
  ops.add(saved.mlp.x_TD, saved.attention.x_TD);
  mlp_forward(ops, config.mlp, weights.mlp, scratch.attention.norm_TD, saved.mlp, scratch.mlp, y_TD);
}

void complete_stream(Ops& ops, ConstTensorView residual_TD, const LayerSaved& saved) {
  if (!residual_TD.empty()) ops.add(saved.attention.x_TD, residual_TD);
}

}  // namespace

void parallel_layer_forward(Ops& ops, const LayerConfig& config, const LayerWeights& weights,
                            const SequenceInfo& sequences, ConstTensorView residual_TD,
                            const LayerSaved& saved, const LayerScratch& scratch, TensorView y_TD) {
  complete_stream(ops, residual_TD, saved);
  parallel_norm(ops, config, weights, saved, scratch, scratch.attention.norm_TD);
  self_attention_forward(ops, config.attention, weights.attention, sequences, scratch.attention.norm_TD,
                         saved.attention, scratch.attention.lora, saved.mlp.x_TD);
  finish_forward(ops, config, weights, saved, scratch, y_TD);
}

void parallel_layer_recompute(Ops& ops, const LayerConfig& config, const LayerWeights& weights,
                              const SequenceInfo& sequences, const KeptOutputs& kept, const LayerSaved& saved,
                              const LayerScratch& scratch) {
  if (!kept.qkv) parallel_norm(ops, config, weights, saved, scratch, scratch.attention.norm_TD);
  KeptOutputs of_attention = kept;
  of_attention.stream = true;  // backward does not read it
  self_attention_recompute(ops, config.attention, weights.attention, sequences, of_attention,
                           scratch.attention.norm_TD, saved.attention, scratch.attention.lora, /*y_TD=*/{});
}

void parallel_layer_backward(Ops& ops, const LayerConfig& config, const LayerWeights& weights,
                             const LayerGrads& grads, WeightUpdate update, const SequenceInfo& sequences,
                             const LayerSaved& saved, const LayerScratch& scratch, TensorView dx_TD) {
  // (3) The sum passes its gradient to all three terms. norm is recomputed for each product that reads it,
  // and its gradient takes its place: that of the MLP where forward had the stream.
  const TensorView mlp_norm_TD = saved.mlp.x_TD;
  parallel_norm(ops, config, weights, saved, scratch, mlp_norm_TD);
  mlp_backward(ops, config.mlp, weights.mlp, grads.mlp, update, dx_TD, mlp_norm_TD, saved.mlp, scratch.mlp);
  // (2)
  const TensorView dnorm_TD = scratch.attention.norm_TD;
  parallel_norm(ops, config, weights, saved, scratch, dnorm_TD);
  self_attention_backward(ops, config.attention, weights.attention, grads.attention, update, sequences, dx_TD,
                          dnorm_TD, saved.attention, scratch.attention);
  ops.add(dnorm_TD, mlp_norm_TD);
  // (1)
  norm_backward(ops, config.attention.norm, dnorm_TD, saved.attention.x_TD, weights.attention.norm_D,
                scratch.attention.statistics_T, dx_TD, Update::kAdd, grads.attention.norm_D, update.mode);
}

void parallel_layer_cached(Ops& ops, const LayerConfig& config, const LayerWeights& weights,
                           const SequenceInfo& sequences, ConstTensorView residual_TD,
                           const KeyValueCache& cache, int64_t cache_length, const LayerSaved& saved,
                           const LayerScratch& scratch, TensorView y_TD) {
  complete_stream(ops, residual_TD, saved);
  parallel_norm(ops, config, weights, saved, scratch, scratch.attention.norm_TD);
  self_attention_cached(ops, config.attention, weights.attention, sequences, scratch.attention.norm_TD, cache,
                        cache_length, saved.attention, scratch.attention.lora, saved.mlp.x_TD);
  finish_forward(ops, config, weights, saved, scratch, y_TD);
}

}  // namespace tessera
