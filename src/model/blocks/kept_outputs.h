// The outputs a layer keeps from its forward pass for its backward pass. Everything else is recomputed from
// the layer's input (activation checkpointing), with the same bits.
#pragma once

#include <cstdint>
#include <vector>

#include "model/trainable_model.h"

namespace tessera {

// Outputs of a layer's operations, in the order of the layer. Each can be kept or recomputed whatever is done
// with the others. In a decoder's layer that also attends to an encoder's output each stands for both
// attentions.
struct KeptOutputs {
  bool qkv = false;        // queries, keys and values: projection, head norms, rotation
  bool attention = false;  // o and lse
  bool stream = false;     // after the attention block: the output projection
  bool gate_up = false;    // of the MLP

  // What the last layer of a stack does not recompute.
  static constexpr KeptOutputs of_last_layer() { return {true, true, true, false}; }
};

// Whether a layer is the last one of the encoder or of the decoder. It recomputes nothing but gate_up, since
// no other layer has overwritten the memory they share when its backward starts.
bool is_last_of_its_stack(const ModelConfig& config, int64_t layer);

// Outputs that a model can keep: all but those.
int64_t num_keepable_outputs(const ModelConfig& config);

// By layer. Without checkpointing all outputs are kept, without training none; with checkpointing
// limits.num_kept_outputs of them, those first whose recomputation takes the most time per byte kept, lower
// layers first. The order depends on the model and limits.max_sequence_length alone.
std::vector<KeptOutputs> kept_outputs(const ModelConfig& config, DType dtype, const ActivationLimits& limits);

// Layers whose attention is computed again.
int64_t num_recomputed_attentions(const ModelConfig& config, DType dtype, const ActivationLimits& limits);

}  // namespace tessera
