#include "model/encoder/encoder_tensors.h"

#include <string>
#include <utility>

#include "base/error.h"

namespace tessera {
namespace {

using Kind = ParameterKind;

// What a family calls its tensors, without ".weight" and ".bias"; {} is the number of the layer.
struct EncoderNames {
  const char* words;
  const char* positions;
  const char* types;
  const char* embedding_norm;
  std::vector<const char*> qkv;
  const char* attention_output;
  const char* attention_norm;
  const char* first;  // of the MLP
  const char* second;
  const char* mlp_norm;
  const char* final_norm;
  const char* transform;
  const char* head_norm;
  const char* lm_head_bias;  // in full
};

const EncoderNames& names_of(const std::string& family) {
  static const EncoderNames bert = {
      "bert.embeddings.word_embeddings",
      "bert.embeddings.position_embeddings",
      "bert.embeddings.token_type_embeddings",
      "bert.embeddings.LayerNorm",
      {"bert.encoder.layer.{}.attention.self.query", "bert.encoder.layer.{}.attention.self.key",
       "bert.encoder.layer.{}.attention.self.value"},
      "bert.encoder.layer.{}.attention.output.dense",
      "bert.encoder.layer.{}.attention.output.LayerNorm",
      "bert.encoder.layer.{}.intermediate.dense",
      "bert.encoder.layer.{}.output.dense",
      "bert.encoder.layer.{}.output.LayerNorm",
      "",
      "cls.predictions.transform.dense",
      "cls.predictions.transform.LayerNorm",
      "cls.predictions.bias"};
  static const EncoderNames xlm_roberta = {
      "roberta.embeddings.word_embeddings",
      "roberta.embeddings.position_embeddings",
      "roberta.embeddings.token_type_embeddings",
      "roberta.embeddings.LayerNorm",
      {"roberta.encoder.layer.{}.attention.self.query", "roberta.encoder.layer.{}.attention.self.key",
       "roberta.encoder.layer.{}.attention.self.value"},
      "roberta.encoder.layer.{}.attention.output.dense",
      "roberta.encoder.layer.{}.attention.output.LayerNorm",
      "roberta.encoder.layer.{}.intermediate.dense",
      "roberta.encoder.layer.{}.output.dense",
      "roberta.encoder.layer.{}.output.LayerNorm",
      "",
      "lm_head.dense",
      "lm_head.layer_norm",
      "lm_head.bias"};
  static const EncoderNames modernbert = {"model.embeddings.tok_embeddings",
                                          "",
                                          "",
                                          "model.embeddings.norm",
                                          {"model.layers.{}.attn.Wqkv"},
                                          "model.layers.{}.attn.Wo",
                                          "model.layers.{}.attn_norm",
                                          "model.layers.{}.mlp.Wi",
                                          "model.layers.{}.mlp.Wo",
                                          "model.layers.{}.mlp_norm",
                                          "model.final_norm",
                                          "head.dense",
                                          "head.norm",
                                          "decoder.bias"};
  TESSERA_CHECK(family == "bert" || family == "xlm-roberta" || family == "modernbert",
                "family {} is no encoder", family);
  return family == "bert" ? bert : family == "xlm-roberta" ? xlm_roberta : modernbert;
}

// Lists tensors of one group.
class EncoderGroup {
 public:
  EncoderGroup(std::vector<ModelTensor>& tensors, int64_t group, int64_t layer = 0)
      : tensors_(tensors), group_(group), layer_(layer) {}

  template <typename Weight>
  void add(Kind kind, Weight& weight, TensorView& gradient, std::vector<ParameterPart> parts) {
    tensors_.push_back({group_, kind, std::move(parts), &weight, &gradient});
  }
  // Weights [rows, columns] split evenly over `names`, and their bias if `bias` is not null.
  void linear(Kind kind, const std::vector<const char*>& names, int64_t rows, int64_t columns,
              LinearWeight& weight, TensorView& gradient, bool has_bias, ConstTensorView& bias,
              TensorView& dbias) {
    std::vector<ParameterPart> weights, biases;
    const int64_t of_each = rows / std::ssize(names);
    for (const char* name : names) {
      weights.push_back({in_layer(name) + ".weight", {of_each, columns}});
      biases.push_back({in_layer(name) + ".bias", {of_each}});
    }
    add(kind, weight, gradient, std::move(weights));
    if (has_bias) pending_.push_back({group_, Kind::kBias, std::move(biases), &bias, &dbias});
  }
  void adapted(LoraWeights& lora, LoraGrads& gradient) {
    tensors_.back().lora = &lora;
    tensors_.back().lora_gradient = &gradient;
    flush();
  }
  // The biases of the linear layers so far.
  void flush() {
    for (ModelTensor& bias : pending_) tensors_.push_back(std::move(bias));
    pending_.clear();
  }
  void norm(const char* name, int64_t width, bool has_bias, ConstTensorView& weight, TensorView& gradient,
            ConstTensorView& bias, TensorView& dbias) {
    add(Kind::kNorm, weight, gradient, {{in_layer(name) + ".weight", {width}}});
    if (has_bias) add(Kind::kBias, bias, dbias, {{in_layer(name) + ".bias", {width}}});
  }

 private:
  std::string in_layer(std::string name) const {
    const size_t at = name.find("{}");
    return at == name.npos ? name : name.replace(at, 2, std::to_string(layer_));
  }

  std::vector<ModelTensor>& tensors_;
  int64_t group_, layer_;
  std::vector<ModelTensor> pending_;
};

}  // namespace

std::vector<ModelTensor> encoder_tensors(const ModelConfig& config, EncoderWeights& weights,
                                         EncoderGrads& grads) {
  const EncoderNames& names = names_of(config.family);
  const EncoderOnly& encoder = *config.encoder;
  const int64_t D = config.hidden_size, V = config.vocab_size;
  const int64_t F = (is_gated(config.activation) ? 2 : 1) * config.intermediate_size;
  std::vector<ModelTensor> tensors;
  EncoderGroup embedding(tensors, 0);
  const auto table = [&](const char* name, int64_t rows, auto& weight, TensorView& gradient) {
    embedding.add(Kind::kEmbedding, weight, gradient, {{std::string(name) + ".weight", {rows, D}}});
  };
  table(names.words, V, weights.head.lm_head_VD, grads.head.lm_head_VD);
  if (encoder.has_positions)
    table(names.positions, config.max_position_embeddings + encoder.position_offset, weights.position_PD,
          grads.position_PD);
  if (encoder.type_vocab_size > 0)
    table(names.types, encoder.type_vocab_size, weights.type_KD, grads.type_KD);
  embedding.norm(names.embedding_norm, D, encoder.norm_bias, weights.embedding_norm_D, grads.embedding_norm_D,
                 weights.embedding_norm_b_D, grads.embedding_norm_b_D);

  weights.layers.resize(static_cast<size_t>(config.num_hidden_layers));
  grads.layers.resize(weights.layers.size());
  for (int64_t i = 0; i < config.num_hidden_layers; ++i) {
    EncoderGroup group(tensors, 1 + i, i);
    auto& [self, self_norm_b, mlp, mlp_norm_b] = weights.layers[static_cast<size_t>(i)];
    auto& [dself, dself_norm_b, dmlp, dmlp_norm_b] = grads.layers[static_cast<size_t>(i)];
    group.linear(Kind::kMatrix, names.qkv, 3 * D, D, self.wqkv_QD, dself.wqkv_QD, config.qkv_bias,
                 self.bqkv_Q, dself.bqkv_Q);
    group.adapted(self.lora_qkv, dself.lora_qkv);
    group.linear(Kind::kMatrix, {names.attention_output}, D, D, self.wo_DHE, dself.wo_DHE, config.o_bias,
                 self.bo_D, dself.bo_D);
    group.adapted(self.lora_o, dself.lora_o);
    if (!encoder.norm_first || i > 0)
      group.norm(names.attention_norm, D, encoder.norm_bias, self.norm_D, dself.norm_D, self_norm_b,
                 dself_norm_b);
    group.linear(Kind::kMatrix, {names.first}, F, D, mlp.w1_F2D, dmlp.w1_F2D, config.mlp_bias, mlp.b1_F2,
                 dmlp.b1_F2);
    group.adapted(mlp.lora_1, dmlp.lora_1);
    group.linear(Kind::kMatrix, {names.second}, D, config.intermediate_size, mlp.w2_DF, dmlp.w2_DF,
                 config.mlp_bias, mlp.b2_D, dmlp.b2_D);
    group.adapted(mlp.lora_2, dmlp.lora_2);
    group.norm(names.mlp_norm, D, encoder.norm_bias, mlp.norm_D, dmlp.norm_D, mlp_norm_b, dmlp_norm_b);
  }

  EncoderGroup head(tensors, config.num_hidden_layers + 1);
  if (encoder.norm_first)
    head.norm(names.final_norm, D, encoder.norm_bias, weights.final_norm_D, grads.final_norm_D,
              weights.final_norm_b_D, grads.final_norm_b_D);
  head.linear(Kind::kLmHead, {names.transform}, D, D, weights.head.transform_DD, grads.head.transform_DD,
              encoder.transform_bias, weights.head.transform_b_D, grads.head.transform_b_D);
  head.flush();
  head.norm(names.head_norm, D, encoder.norm_bias, weights.head.norm_D, grads.head.norm_D,
            weights.head.norm_b_D, grads.head.norm_b_D);
  if (encoder.lm_head_bias)
    head.add(Kind::kBias, weights.head.lm_head_b_V, grads.head.lm_head_b_V, {{names.lm_head_bias, {V}}});
  return tensors;
}

}  // namespace tessera
