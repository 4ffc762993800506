#include "model/decoder_layer.h"

#include <algorithm>

#include "model/allocate.h"

namespace tessera {
namespace {

template <typename Tensors, typename View>
Tensors bind(const ModelConfig& config, const ParameterLayout& layout, int64_t layer, View flat) {
  // A view that begins at a parameter; a shape larger than its own covers the rest of its block.
  const auto at = [&](const char* suffix, const Shape& shape) -> View {
    const Parameter& parameter = layout.at(layer_parameter_name(layer, suffix));
    return flat.rows(parameter.offset, parameter.offset + shape.num_elements()).reshaped(shape);
  };
  const int64_t hidden = config.hidden_size;
  const int64_t intermediate = config.intermediate_size;
  const int64_t q_width = config.num_attention_heads * config.head_dim;
  const int64_t qkv_width = q_width + 2 * config.num_key_value_heads * config.head_dim;

  Tensors tensors;
  tensors.attention.norm_D = at("input_layernorm.weight", {hidden});
  tensors.attention.wqkv_QD = at("self_attn.q_proj.weight", {qkv_width, hidden});
  if (config.qkv_bias) tensors.attention.bqkv_Q = at("self_attn.q_proj.bias", {qkv_width});
  if (config.qk_norm) {
    tensors.attention.q_norm_E = at("self_attn.q_norm.weight", {config.head_dim});
    tensors.attention.k_norm_E = at("self_attn.k_norm.weight", {config.head_dim});
  }
  tensors.attention.wo_DHE = at("self_attn.o_proj.weight", {hidden, q_width});
  if (config.o_bias) tensors.attention.bo_D = at("self_attn.o_proj.bias", {hidden});

  tensors.mlp.norm_D = at("post_attention_layernorm.weight", {hidden});
  tensors.mlp.w1_F2D = at("mlp.gate_proj.weight", {2 * intermediate, hidden});
  tensors.mlp.w2_DF = at("mlp.down_proj.weight", {hidden, intermediate});
  if (config.mlp_bias) {
    tensors.mlp.b1_F2 = at("mlp.gate_proj.bias", {2 * intermediate});
    tensors.mlp.b2_D = at("mlp.down_proj.bias", {hidden});
  }
  return tensors;
}

}  // namespace

LayerWeights bind_layer(const ModelConfig& config, const ParameterLayout& layout, int64_t layer,
                        ConstTensorView flat) {
  return bind<LayerWeights>(config, layout, layer, flat);
}

LayerGrads bind_layer(const ModelConfig& config, const ParameterLayout& layout, int64_t layer,
                      TensorView flat) {
  return bind<LayerGrads>(config, layout, layer, flat);
}

LayerScratch allocate_layer_scratch(Arena& arena, const ModelConfig& config, DType dtype, int64_t num_tokens,
                                    bool training) {
  LayerScratch scratch;
  const Arena::Mark mark = arena.mark();
  scratch.attention = allocate_attention_scratch(arena, config, dtype, num_tokens, training);
  const int64_t attention_end = arena.used_bytes();
  arena.release(mark);
  scratch.mlp = allocate_mlp_scratch(arena, config, dtype, num_tokens);
  arena.release({std::max(attention_end, arena.used_bytes())});
  return scratch;
}

void decoder_layer_forward(Ops& ops, const AttentionBlockConfig& config, const LayerWeights& weights,
                           const SequenceInfo& sequences, ConstTensorView residual_TD,
                           const LayerSaved& saved, const LayerScratch& scratch, TensorView y_TD) {
  attention_block_forward(ops, config, weights.attention, sequences, residual_TD, saved.attention,
                          scratch.attention, saved.mlp.x_TD);
  mlp_block_forward(ops, config.norm_eps, weights.mlp, saved.attention.x_TD, saved.mlp, scratch.mlp, y_TD);
}

void decoder_layer_recompute(Ops& ops, const AttentionBlockConfig& config, const LayerWeights& weights,
                             const SequenceInfo& sequences, const LayerSaved& saved,
                             const LayerScratch& scratch) {
  decoder_layer_forward(ops, config, weights, sequences, /*residual_TD=*/{}, saved, scratch, /*y_TD=*/{});
}

void decoder_layer_backward(Ops& ops, const AttentionBlockConfig& config, const LayerWeights& weights,
                            const LayerGrads& grads, WeightUpdate update, const SequenceInfo& sequences,
                            const LayerSaved& saved, const LayerScratch& scratch, TensorView dx_TD) {
  mlp_block_backward(ops, config.norm_eps, weights.mlp, grads.mlp, update, saved.mlp, scratch.mlp, dx_TD);
  attention_block_backward(ops, config, weights.attention, grads.attention, update, sequences,
                           saved.attention, scratch.attention, dx_TD);
}

}  // namespace tessera
