#include "model/llama/llama_tensors.h"

#include <utility>

#include "base/error.h"
#include "formats/huggingface/model_families.h"

namespace tessera {
namespace {

using Kind = ParameterKind;

// Weights [sizes, columns] under these names, or under one: stacked.
std::vector<ParameterPart> stacked(const std::vector<std::string>& names, const std::vector<int64_t>& sizes,
                                   int64_t columns) {
  TESSERA_CHECK(names.size() == sizes.size() || names.size() == 1, "{} names", names.size());
  std::vector<ParameterPart> parts;
  int64_t sum = 0;
  for (size_t i = 0; i < sizes.size(); ++i) {
    sum += sizes[i];
    if (names.size() > 1) parts.push_back({names[i] + ".weight", {sizes[i], columns}});
  }
  if (names.size() == 1) parts.push_back({names[0] + ".weight", {sum, columns}});
  return parts;
}

// The biases of such weights.
std::vector<ParameterPart> biases_of(std::vector<ParameterPart> weights) {
  for (ParameterPart& part : weights) {
    part.name.replace(part.name.size() - std::string_view("weight").size(), std::string::npos, "bias");
    part.shape.resize(1);
  }
  return weights;
}

// The router and the experts of a layer whose matrices are [in, out]. Files have those of all experts in one
// tensor (weights/weight_names.h).
template <typename InLayer>
void list_fused_experts(const ModelConfig& config, const DecoderNames& names, MoeWeights& weights,
                        MoeGrads& grads, std::vector<ModelTensor>& tensors, const InLayer& in_layer) {
  const int64_t D = config.hidden_size, F = config.experts->moe_intermediate_size;
  const int64_t E = config.experts->num_experts;
  const auto bias = [&](auto& weight, TensorView& gradient, const std::string& name, int64_t width) {
    in_layer(Kind::kBias, weight, gradient, {{fmt::format("{}.{}_bias", names.experts, name), {E, width}}});
  };
  const auto matrix = [&](size_t e, auto& weight, TensorView& gradient, const std::string& name,
                          std::vector<int64_t> shape) {
    const std::string tensor = names.experts + "." + name;
    const auto index = static_cast<int64_t>(e);
    in_layer(Kind::kMatrix, weight, gradient,
             {{slice_name(tensor, index), std::move(shape), {tensor, index, E}}});
    tensors.back().transposed = true;
    tensors.back().expert = index;
    tensors.back().token_share =
        static_cast<double>(config.experts->num_experts_per_tok) / static_cast<double>(E);
  };
  in_layer(Kind::kBias, weights.router_bias_E, grads.router_bias_E, {{names.router + ".bias", {E}}});
  bias(weights.b1_EF2, grads.b1_EF2, names.expert_gate_up, 2 * F);
  bias(weights.b2_ED, grads.b2_ED, names.expert_down, D);
  for (size_t e = 0; e < weights.experts.size(); ++e) {
    matrix(e, weights.experts[e].w1_F2D, grads.experts[e].w1_F2D, names.expert_gate_up, {D, 2 * F});
    matrix(e, weights.experts[e].w2_DF, grads.experts[e].w2_DF, names.expert_down, {F, D});
  }
}

// The experts come last in a layer, one after the other. Every matrix of one is a tensor of its own, with
// packed or quantized forms like any other.
template <typename InLayer, typename Adapted>
void list_experts(const ModelConfig& config, const DecoderNames& names, MoeWeights& weights, MoeGrads& grads,
                  std::vector<ModelTensor>& tensors, const InLayer& in_layer, const Adapted& adapted) {
  const int64_t D = config.hidden_size, F = config.experts->moe_intermediate_size;
  const int64_t num_experts = config.experts->num_experts;
  const double token_share =
      static_cast<double>(config.experts->num_experts_per_tok) / static_cast<double>(num_experts);
  in_layer(Kind::kNorm, weights.norm_D, grads.norm_D, {{names.mlp_norm + ".weight", {D}}});
  in_layer(Kind::kRouter, weights.router_ED, grads.router_ED, {{names.router + ".weight", {num_experts, D}}});
  weights.experts.resize(static_cast<size_t>(num_experts));
  grads.experts.resize(weights.experts.size());
  if (config.experts->fused) return list_fused_experts(config, names, weights, grads, tensors, in_layer);
  for (size_t e = 0; e < weights.experts.size(); ++e) {
    auto& expert = weights.experts[e];
    auto& gradient = grads.experts[e];
    const auto name = [&](const std::string& matrix) {
      return fmt::format("{}.{}.{}.weight", names.experts, e, matrix);
    };
    in_layer(Kind::kMatrix, expert.w1_F2D, gradient.w1_F2D,
             {{name(names.expert_gate), {F, D}}, {name(names.expert_up), {F, D}}});
    adapted(expert.lora_1, gradient.lora_1, token_share);
    tensors.back().expert = static_cast<int64_t>(e);
    in_layer(Kind::kMatrix, expert.w2_DF, gradient.w2_DF, {{name(names.expert_down), {D, F}}});
    adapted(expert.lora_2, gradient.lora_2, token_share);
    tensors.back().expert = static_cast<int64_t>(e);
  }
}

}  // namespace

std::string layer_parameter_name(int64_t layer, const std::string& suffix) {
  return fmt::format("model.layers.{}.{}", layer, suffix);
}

std::vector<ModelTensor> llama_tensors(const ModelConfig& config, LlamaWeights& weights, LlamaGrads& grads) {
  const int64_t D = config.hidden_size, F = config.intermediate_size, V = config.vocab_size;
  const int64_t E = config.head_dim;
  const int64_t HE = config.num_attention_heads * E, GE = config.num_key_value_heads * E;
  const bool has_norm_before = config.norm_placement != NormPlacement::kAfter;
  const bool has_norm_after = config.norm_placement != NormPlacement::kBefore;
  const DecoderNames& names = family_info(config.family).names;
  const std::vector<ParameterPart> qkv = stacked(names.qkv, {HE, GE, GE}, D), o = stacked({names.o}, {D}, HE);
  const std::vector<ParameterPart> gate_up = stacked(names.gate_up, {F, F}, D);
  const std::vector<ParameterPart> down = stacked({names.down}, {D}, F);
  std::vector<ModelTensor> tensors;
  const auto add = [&](int64_t group, Kind kind, auto& weight, TensorView& gradient,
                       std::vector<ParameterPart> parts) {
    tensors.push_back({group, kind, std::move(parts), &weight, &gradient});
  };
  const ParameterPart embedding = {names.embedding + ".weight", {V, D}};
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
      for (ParameterPart& part : parts) {
        part.name = layer_parameter_name(layer, part.name);
        if (part.slice.count > 0) part.slice.tensor = layer_parameter_name(layer, part.slice.tensor);
      }
      add(1 + layer, kind, weight, gradient, std::move(parts));
    };
    const auto adapted = [&](LoraWeights& lora, LoraGrads& gradient, double token_share = 1) {
      tensors.back().token_share = token_share;
      tensors.back().lora = &lora;
      tensors.back().lora_gradient = &gradient;
    };
    auto& [w, mlp, moe] = weights.layers[static_cast<size_t>(layer)];
    auto& [dw, dmlp, dmoe] = grads.layers[static_cast<size_t>(layer)];
    if (has_norm_before)
      in_layer(Kind::kNorm, w.norm_D, dw.norm_D, {{names.attention_norm + ".weight", {D}}});
    in_layer(Kind::kMatrix, w.wqkv_QD, dw.wqkv_QD, qkv);
    adapted(w.lora_qkv, dw.lora_qkv);
    if (config.qkv_bias) in_layer(Kind::kBias, w.bqkv_Q, dw.bqkv_Q, biases_of(qkv));
    if (config.qk_norm) {
      const int64_t q_width = config.qk_norm_whole ? HE : E, k_width = config.qk_norm_whole ? GE : E;
      in_layer(Kind::kNorm, w.q_norm_E, dw.q_norm_E, {{names.q_norm + ".weight", {q_width}}});
      in_layer(Kind::kNorm, w.k_norm_E, dw.k_norm_E, {{names.k_norm + ".weight", {k_width}}});
    }
    in_layer(Kind::kMatrix, w.wo_DHE, dw.wo_DHE, o);
    adapted(w.lora_o, dw.lora_o);
    if (config.o_bias) in_layer(Kind::kBias, w.bo_D, dw.bo_D, biases_of(o));

    if (config.attention_sinks)
      in_layer(Kind::kSinks, w.sinks_H, dw.sinks_H, {{names.sinks, {config.num_attention_heads}}});
    if (has_norm_after)
      in_layer(Kind::kNorm, w.output_norm_D, dw.output_norm_D,
               {{names.attention_output_norm + ".weight", {D}}});

    if (config.has_experts(layer)) {
      list_experts(config, names, moe, dmoe, tensors, in_layer, adapted);
      continue;
    }
    if (has_norm_before && !config.parallel_blocks)
      in_layer(Kind::kNorm, mlp.norm_D, dmlp.norm_D, {{names.mlp_norm + ".weight", {D}}});
    in_layer(Kind::kMatrix, mlp.w1_F2D, dmlp.w1_F2D, gate_up);
    adapted(mlp.lora_1, dmlp.lora_1);
    if (config.mlp_bias) in_layer(Kind::kBias, mlp.b1_F2, dmlp.b1_F2, biases_of(gate_up));
    in_layer(Kind::kMatrix, mlp.w2_DF, dmlp.w2_DF, down);
    adapted(mlp.lora_2, dmlp.lora_2);
    if (config.mlp_bias) in_layer(Kind::kBias, mlp.b2_D, dmlp.b2_D, biases_of(down));
    if (has_norm_after)
      in_layer(Kind::kNorm, mlp.output_norm_D, dmlp.output_norm_D,
               {{names.mlp_output_norm + ".weight", {D}}});
  }

  const int64_t last = config.num_hidden_layers + 1;
  add(last, Kind::kNorm, weights.head.norm_D, grads.head.norm_D, {{names.final_norm + ".weight", {D}}});
  if (!config.tie_word_embeddings) {
    add(last, Kind::kLmHead, weights.head.lm_head_VD, grads.head.lm_head_VD,
        {{names.lm_head + ".weight", {V, D}}});
  }
  return tensors;
}

}  // namespace tessera
