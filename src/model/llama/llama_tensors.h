// The tensors of a Llama-family model.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/huggingface/model_config.h"
#include "model/blocks/loss_head.h"
#include "model/llama/decoder_layer.h"
#include "model/model_tensor.h"

namespace tessera {

template <typename View, typename Matrix = View>
struct LlamaTensors {
  View embedding_VD;  // empty if tied: head.lm_head_VD
  std::vector<LayerTensors<View, Matrix>> layers;
  LossHeadTensors<View, Matrix> head;
};
using LlamaWeights = LlamaTensors<ConstTensorView, LinearWeight>;
using LlamaGrads = LlamaTensors<TensorView>;

// The one list of them, in the order of the flat array: embedding, layers, final norm, LM head (absent if
// tied), with the views in `weights` and `grads`, whose layers it creates.
std::vector<ModelTensor> llama_tensors(const ModelConfig& config, LlamaWeights& weights, LlamaGrads& grads);

// "model.layers.3." + suffix.
std::string layer_parameter_name(int64_t layer, const std::string& suffix);

}  // namespace tessera
