#include "model/encoder_decoder/encoder_decoder_tensors.h"

#include <string>
#include <utility>

#include "base/error.h"

namespace tessera {
namespace {

using Kind = ParameterKind;

// Appends tensors of one group whose names begin alike.
class GroupTensors {
 public:
  GroupTensors(std::vector<ModelTensor>& tensors, int64_t group, std::string prefix)
      : tensors_(tensors), group_(group), prefix_(std::move(prefix)) {}

  template <typename Weight>
  void add(Kind kind, Weight& weight, TensorView& gradient, std::vector<ParameterPart> parts) {
    for (ParameterPart& part : parts) part.name = prefix_ + part.name + ".weight";
    tensors_.push_back({group_, kind, std::move(parts), &weight, &gradient});
  }
  void add_adapted(LinearWeight& weight, TensorView& gradient, LoraWeights& lora, LoraGrads& lora_gradient,
                   std::vector<ParameterPart> parts) {
    add(Kind::kMatrix, weight, gradient, std::move(parts));
    tensors_.back().lora = &lora;
    tensors_.back().lora_gradient = &lora_gradient;
  }

 private:
  std::vector<ModelTensor>& tensors_;
  int64_t group_;
  std::string prefix_;
};

}  // namespace

std::vector<ModelTensor> encoder_decoder_tensors(const ModelConfig& config, EncoderDecoderWeights& weights,
                                                 EncoderDecoderGrads& grads) {
  const EncoderDecoder& stacks = *config.encoder_decoder;
  const int64_t D = config.hidden_size, F = config.intermediate_size, V = config.vocab_size;
  const int64_t H = config.num_attention_heads, HE = H * config.head_dim;
  const int64_t num_layers = config.num_hidden_layers, num_buckets = stacks.relative_attention_num_buckets;
  std::vector<ModelTensor> tensors;
  GroupTensors embedding(tensors, 0, "");
  if (config.tie_word_embeddings) {
    embedding.add(Kind::kEmbedding, weights.head.lm_head_VD, grads.head.lm_head_VD, {{"shared", {V, D}}});
  } else {
    embedding.add(Kind::kEmbedding, weights.embedding_VD, grads.embedding_VD, {{"shared", {V, D}}});
  }

  weights.layers.resize(static_cast<size_t>(num_layers));
  grads.layers.resize(weights.layers.size());
  for (int64_t i = 0; i < num_layers; ++i) {
    const bool is_encoder = i < stacks.num_encoder_layers;
    const int64_t layer = is_encoder ? i : i - stacks.num_encoder_layers;  // in its stack
    const char* const stack = is_encoder ? "encoder" : "decoder";
    GroupTensors group(tensors, 1 + i, fmt::format("{}.block.{}.layer.", stack, layer));
    auto& [self, cross, mlp] = weights.layers[static_cast<size_t>(i)];
    auto& [dself, dcross, dmlp] = grads.layers[static_cast<size_t>(i)];
    group.add_adapted(
        self.wqkv_QD, dself.wqkv_QD, self.lora_qkv, dself.lora_qkv,
        {{"0.SelfAttention.q", {HE, D}}, {"0.SelfAttention.k", {HE, D}}, {"0.SelfAttention.v", {HE, D}}});
    group.add_adapted(self.wo_DHE, dself.wo_DHE, self.lora_o, dself.lora_o, {{"0.SelfAttention.o", {D, HE}}});
    if (layer == 0) {
      group.add(Kind::kPositionBias, is_encoder ? weights.encoder_bias_BH : weights.decoder_bias_BH,
                is_encoder ? grads.encoder_bias_BH : grads.decoder_bias_BH,
                {{"0.SelfAttention.relative_attention_bias", {num_buckets, H}}});
    }
    group.add(Kind::kNorm, self.norm_D, dself.norm_D, {{"0.layer_norm", {D}}});
    if (!is_encoder) {
      group.add_adapted(cross.wq_QD, dcross.wq_QD, cross.lora_q, dcross.lora_q,
                        {{"1.EncDecAttention.q", {HE, D}}});
      group.add_adapted(cross.wkv_KD, dcross.wkv_KD, cross.lora_kv, dcross.lora_kv,
                        {{"1.EncDecAttention.k", {HE, D}}, {"1.EncDecAttention.v", {HE, D}}});
      group.add_adapted(cross.wo_DQ, dcross.wo_DQ, cross.lora_o, dcross.lora_o,
                        {{"1.EncDecAttention.o", {D, HE}}});
      group.add(Kind::kNorm, cross.norm_D, dcross.norm_D, {{"1.layer_norm", {D}}});
    }
    const std::string last = is_encoder ? "1." : "2.";
    const std::string dense = last + "DenseReluDense.";
    std::vector<ParameterPart> first = {{dense + "wi", {F, D}}};
    if (is_gated(config.activation)) first = {{dense + "wi_0", {F, D}}, {dense + "wi_1", {F, D}}};
    group.add_adapted(mlp.w1_F2D, dmlp.w1_F2D, mlp.lora_1, dmlp.lora_1, std::move(first));
    group.add_adapted(mlp.w2_DF, dmlp.w2_DF, mlp.lora_2, dmlp.lora_2, {{dense + "wo", {D, F}}});
    group.add(Kind::kNorm, mlp.norm_D, dmlp.norm_D, {{last + "layer_norm", {D}}});
    if (is_encoder && layer + 1 == stacks.num_encoder_layers) {
      GroupTensors(tensors, 1 + i, "encoder.")
          .add(Kind::kNorm, weights.encoder_norm_D, grads.encoder_norm_D, {{"final_layer_norm", {D}}});
    }
  }

  GroupTensors head(tensors, num_layers + 1, "");
  head.add(Kind::kNorm, weights.head.norm_D, grads.head.norm_D, {{"decoder.final_layer_norm", {D}}});
  if (!config.tie_word_embeddings)
    head.add(Kind::kLmHead, weights.head.lm_head_VD, grads.head.lm_head_VD, {{"lm_head", {V, D}}});
  return tensors;
}

}  // namespace tessera
