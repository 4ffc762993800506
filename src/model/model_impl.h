// The inside of Model: the parts of a step, one by one.
#pragma once

#include <vector>

#include "model/activations.h"
#include "model/model.h"
#include "model/rope_table.h"

namespace tessera {

struct Model::Impl {
  Impl(const ModelConfig& model_config, DType model_dtype, Ops& model_ops);

  void bind_parameters(TensorView flat_weights, TensorView flat_gradients);
  OpsLimits ops_limits(const ActivationLimits& for_limits, int64_t max_logits_rows) const;
  void reserve(const ActivationLimits& new_limits);
  // Bytes of the packed forms of all matrices.
  int64_t packed_bytes(const ActivationLimits& for_limits) const;
  // Points the matrices to their places in packed_memory.
  void assign_packed_forms();
  // The packed forms of the weights as they are now.
  void refresh_packed_forms();

  // Checks the batch, lays out the buffers for it and binds the workspace.
  void begin(const PackedBatch& batch);
  // The stream in front of the first layer, in activations.layers[0].attention.x_TD.
  void forward_embedding(const PackedBatch& batch);
  // From there the stream behind the last layer, in activations.final_x_TD.
  void forward_layers(const SequenceInfo& sequences);
  // activations.dx_TD, the gradient of the stream behind the last layer, becomes that of the first one's
  // input.
  void backward_layers(const SequenceInfo& sequences, Update update);
  void backward_embedding(const PackedBatch& batch, Update update);
  SequenceInfo sequence_info(const PackedBatch& batch) const;

  ModelConfig config;
  DType dtype;
  Ops* ops;
  ParameterLayout layout;
  std::vector<AttentionBlockConfig> block_configs;  // per layer

  // Views into the caller's flat arrays.
  ConstTensorView embedding_VD;
  std::vector<LayerWeights> layers;
  LossHeadWeights head;
  TensorView gradients;  // all of them; empty without training
  TensorView dembedding_VD;
  std::vector<LayerGrads> layer_grads;
  LossHeadGrads head_grads;

  ActivationLimits limits;
  ActivationMode mode = ActivationMode::kForwardOnly;
  PageBuffer saved_memory;
  PageBuffer working_memory;
  PageBuffer workspace;
  PageBuffer packed_memory;
  bool packed_forms_are_stale = true;
  RopeTableBuffer rope;
  Activations activations;
};

ActivationMode activation_mode(const ActivationLimits& limits);

}  // namespace tessera
