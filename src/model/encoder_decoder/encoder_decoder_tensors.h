// The tensors of T5.
#pragma once

#include <vector>

#include "formats/huggingface/model_config.h"
#include "model/blocks/attention_block.h"
#include "model/blocks/cross_attention_block.h"
#include "model/blocks/loss_head.h"
#include "model/blocks/mlp_block.h"
#include "model/model_tensor.h"

namespace tessera {

// A layer of either stack; those of the encoder have no cross attention.
template <typename View, typename Matrix = View>
struct StackLayerTensors {
  AttentionTensors<View, Matrix> attention;
  CrossAttentionTensors<View, Matrix> cross;
  MlpTensors<View, Matrix> mlp;
};

template <typename View, typename Matrix = View>
struct EncoderDecoderTensors {
  View embedding_VD;                                    // empty if tied: head.lm_head_VD
  std::vector<StackLayerTensors<View, Matrix>> layers;  // the encoder's, then the decoder's
  View encoder_bias_BH;  // relative_attention_bias of the first layer of each stack, which all its layers use
  View decoder_bias_BH;
  View encoder_norm_D;  // after the last layer of the encoder
  LossHeadTensors<View, Matrix> head;
};
using EncoderDecoderWeights = EncoderDecoderTensors<ConstTensorView, LinearWeight>;
using EncoderDecoderGrads = EncoderDecoderTensors<TensorView>;

// The one list of them, in the order of the flat array: embedding, layers of the encoder and of the decoder,
// the decoder's final norm, LM head (absent if tied), with the views in `weights` and `grads`, whose layers
// it creates. The encoder's final norm is in the group of its last layer.
std::vector<ModelTensor> encoder_decoder_tensors(const ModelConfig& config, EncoderDecoderWeights& weights,
                                                 EncoderDecoderGrads& grads);

}  // namespace tessera
