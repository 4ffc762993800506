// Every buffer of a forward and backward pass, laid out in two arenas. The same code measures, allocates and,
// for a batch below the limits, lays the views out again for its number of tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "model/blocks/kept_outputs.h"
#include "model/blocks/loss_head.h"
#include "model/llama/decoder_layer.h"
#include "tensor/arena.h"

namespace tessera {

// The buffers that the layers of a pass have to themselves. Outputs that an entry of `layers` does not keep
// share one set of buffers.
struct ActivationPolicy {
  bool training = false;  // without, all layers share one input, too
  std::vector<KeptOutputs> layers;
  bool offloads_inputs = false;  // the inputs share OffloadedInputs::kSlots slots
  LogitsLimits logits = {};
  int64_t arriving_rows = 0;  // room for them if experts are divided among nodes
};
ActivationPolicy activation_policy(const ModelConfig& config, DType dtype, const ActivationLimits& limits);

// Bytes per token and layer, with A = 2 or 4 bytes per activation: A D for its input, and if kept
//   qkv         A Q,  plus A Q + 4 (H + G) with head norms
//   attention   A H E + 4 H
//   stream      A D,  plus A D + 4 with norms of outputs
//   gate_up     2 A F,  plus A D + 4 with norms of outputs
// plus A D for the residual stream after the last layer. qkv, attention and stream exist at least once.
struct Activations {
  std::vector<LayerSaved> layers;
  TensorView final_x_TD;  // the residual stream after the last layer
  TensorView dx_TD;       // gradient of the stream, reused by all layers; empty without training
  // Layers and loss head never run at the same time: their scratch shares memory.
  LayerScratch layer_scratch;
  LossHeadScratch loss_scratch;
  TargetRows target_rows;
  RouterState router;  // of models with experts

  // Reserves lay_out()'s host memory for any batch of up to max_tokens tokens.
  void reserve(const ModelConfig& config, int64_t max_tokens);
  // Sets up the views for num_tokens tokens. `saved` lives from forward to backward. After reserve() repeated
  // calls do not allocate beyond the arenas.
  void lay_out(const ModelConfig& config, DType dtype, int64_t num_tokens, const ActivationPolicy& policy,
               Arena& saved, Arena& working, const LoraLimits& lora);
};

}  // namespace tessera
