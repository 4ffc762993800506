#include "model/llama/llama_tensors.h"

#include <utility>

#include "base/error.h"

namespace tessera {
namespace {

using Kind = ParameterKind;

}  // namespace

std::string layer_parameter_name(int64_t layer, const std::string& suffix) {
  return fmt::format("model.layers.{}.{}", layer, suffix);
}

std::vector<ModelTensor> llama_tensors(const ModelConfig& config, LlamaWeights& weights, LlamaGrads& grads) {
  const int64_t D = config.hidden_size, F = config.intermediate_size, V = config.vocab_size;
  const int64_t E = config.head_dim;
  const int64_t HE = config.num_attention_heads * E, GE = config.num_key_value_heads * E;
  std::vector<ModelTensor> tensors;
  const auto add = [&](int64_t group, Kind kind, auto& weight, TensorView& gradient,
                       std::vector<ParameterPart> parts) {
    tensors.push_back({group, kind, std::move(parts), &weight, &gradient});
  };
  const ParameterPart embedding = {"model.embed_tokens.weight", {V, D}};
  if (config.tie_word_embeddings) {
    add(0, Kind::kEmbedding, weights.head.lm_head_VD, grads.head.lm_head_VD, {embedding});
  } else {
    add(0, Kind::kEmbedding, weights.embedding_VD, grads.embedding_VD, {embedding});
  }

  weights.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  grads.layers.resize(weights.layers.size());
  for (int64_t layer = 0; layer < config.num_hidden_layers; ++layer) {
    const auto in_layer = [&](Kind kind, auto& weight, TensorView& gradient,
                              std::vector<ParameterPart> parts) {
      for (ParameterPart& part : parts) part.name = layer_parameter_name(layer, part.name);
      add(1 + layer, kind, weight, gradient, std::move(parts));
    };
    const auto adapted = [&](LoraWeights& lora, LoraGrads& gradient) {
      tensors.back().lora = &lora;
      tensors.back().lora_gradient = &gradient;
    };
    auto& [w, mlp] = weights.layers[static_cast<size_t>(layer)];
    auto& [dw, dmlp] = grads.layers[static_cast<size_t>(layer)];
    in_layer(Kind::kNorm, w.norm_D, dw.norm_D, {{"input_layernorm.weight", {D}}});
    in_layer(Kind::kMatrix, w.wqkv_QD, dw.wqkv_QD,
             {{"self_attn.q_proj.weight", {HE, D}},
              {"self_attn.k_proj.weight", {GE, D}},
              {"self_attn.v_proj.weight", {GE, D}}});
    adapted(w.lora_qkv, dw.lora_qkv);
    if (config.qkv_bias) {
      in_layer(Kind::kBias, w.bqkv_Q, dw.bqkv_Q,
               {{"self_attn.q_proj.bias", {HE}},
                {"self_attn.k_proj.bias", {GE}},
                {"self_attn.v_proj.bias", {GE}}});
    }
    if (config.qk_norm) {
      in_layer(Kind::kNorm, w.q_norm_E, dw.q_norm_E, {{"self_attn.q_norm.weight", {E}}});
      in_layer(Kind::kNorm, w.k_norm_E, dw.k_norm_E, {{"self_attn.k_norm.weight", {E}}});
    }
    in_layer(Kind::kMatrix, w.wo_DHE, dw.wo_DHE, {{"self_attn.o_proj.weight", {D, HE}}});
    adapted(w.lora_o, dw.lora_o);
    if (config.o_bias) in_layer(Kind::kBias, w.bo_D, dw.bo_D, {{"self_attn.o_proj.bias", {D}}});

    in_layer(Kind::kNorm, mlp.norm_D, dmlp.norm_D, {{"post_attention_layernorm.weight", {D}}});
    in_layer(Kind::kMatrix, mlp.w1_F2D, dmlp.w1_F2D,
             {{"mlp.gate_proj.weight", {F, D}}, {"mlp.up_proj.weight", {F, D}}});
    adapted(mlp.lora_1, dmlp.lora_1);
    if (config.mlp_bias) {
      in_layer(Kind::kBias, mlp.b1_F2, dmlp.b1_F2, {{"mlp.gate_proj.bias", {F}}, {"mlp.up_proj.bias", {F}}});
    }
    in_layer(Kind::kMatrix, mlp.w2_DF, dmlp.w2_DF, {{"mlp.down_proj.weight", {D, F}}});
    adapted(mlp.lora_2, dmlp.lora_2);
    if (config.mlp_bias) in_layer(Kind::kBias, mlp.b2_D, dmlp.b2_D, {{"mlp.down_proj.bias", {D}}});
  }

  const int64_t last = config.num_hidden_layers + 1;
  add(last, Kind::kNorm, weights.head.norm_D, grads.head.norm_D, {{"model.norm.weight", {D}}});
  if (!config.tie_word_embeddings) {
    add(last, Kind::kLmHead, weights.head.lm_head_VD, grads.head.lm_head_VD, {{"lm_head.weight", {V, D}}});
  }
  return tensors;
}

}  // namespace tessera
