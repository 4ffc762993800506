// The tensors of BERT, XLM-RoBERTa and ModernBERT with their heads for masked language modelling.
#pragma once

#include <vector>

#include "formats/huggingface/model_config.h"
#include "model/blocks/attention_block.h"
#include "model/blocks/loss_head.h"
#include "model/blocks/mlp_block.h"
#include "model/model_tensor.h"

namespace tessera {

template <typename View, typename Matrix = View>
struct EncoderLayerTensors {
  AttentionTensors<View, Matrix> attention;  // its norm is empty in the first layer of ModernBERT
  View attention_norm_b_D;
  MlpTensors<View, Matrix> mlp;
  View mlp_norm_b_D;
};

template <typename View, typename Matrix = View>
struct EncoderTensors {
  View position_PD, type_KD;  // may be empty
  View embedding_norm_D, embedding_norm_b_D;
  std::vector<EncoderLayerTensors<View, Matrix>> layers;
  View final_norm_D, final_norm_b_D;   // of ModernBERT, after the last layer
  LossHeadTensors<View, Matrix> head;  // lm_head_VD: the embedding
};
using EncoderWeights = EncoderTensors<ConstTensorView, LinearWeight>;
using EncoderGrads = EncoderTensors<TensorView>;

// The one list of them, in the order of the flat array: embeddings, layers, head, with the views in `weights`
// and `grads`, whose layers it creates.
std::vector<ModelTensor> encoder_tensors(const ModelConfig& config, EncoderWeights& weights,
                                         EncoderGrads& grads);

}  // namespace tessera
