// The inside of Model: the parts of a step, one by one.
#pragma once

#include <vector>

#include "model/activations.h"
#include "model/model.h"
#include "model/parameter_access.h"
#include "model/rope_table.h"

namespace tessera {

struct Model::Impl {
  Impl(const ModelConfig& model_config, DType model_dtype, Ops& model_ops);

  void bind_parameters(TensorView flat_weights, TensorView flat_gradients);
  // Views of one parameter group in a flat array, of which only this group's elements need exist.
  void bind_weights(int64_t group, ConstTensorView flat);
  void bind_gradients(int64_t group, TensorView flat);
  bool has_weights() const { return !embedding_VD.empty() || access != nullptr; }

  // Nothing without `access`, but that between_layers is asked.
  void open_weights(int64_t group, WeightUse use);
  // With `access`: the group is, or is to be, open at `data`.
  void bind_opened_weights(int64_t group, std::byte* data);
  void close_weights(int64_t group);
  void open_gradients(int64_t group);
  void close_gradients(int64_t group);
  void open_head_weights();
  void close_head_weights();
  void open_head_gradients();
  int64_t head_group() const { return config.num_hidden_layers + 1; }

  // With the LM head as the loss takes it, or for the given pieces of logits.
  OpsLimits ops_limits(const ActivationLimits& for_limits) const;
  OpsLimits ops_limits(const ActivationLimits& for_limits, std::span<const LogitsPieces> logits) const;
  void reserve(const ActivationLimits& new_limits);
  // Bytes of the packed forms of a group's matrices, or of all.
  int64_t packed_bytes(int64_t group, const ActivationLimits& for_limits) const;
  int64_t packed_bytes(const ActivationLimits& for_limits) const;
  // Memory for them: packed_memory, or that of `access`.
  void reserve_packed_forms();
  // Points the matrices to their places in packed_memory, or those of a group to theirs in `memory` (nullptr:
  // not kept).
  void assign_packed_forms();
  void assign_packed_forms(int64_t group, std::byte* memory);
  // In packed_memory, of the weights as they are now.
  void refresh_packed_forms();
  void pack_group(int64_t group, const PackShare& share);
  template <typename Body>
  void for_each_matrix(int64_t group, const Body& body);

  // Checks the batch, lays out the buffers for it and binds the workspace.
  void begin(const PackedBatch& batch);
  // The stream in front of the first layer, in activations.layers[0].attention.x_TD.
  void forward_embedding(const PackedBatch& batch);
  // From there the stream behind the last layer, in activations.final_x_TD.
  void forward_layers(const SequenceInfo& sequences);
  // The loss of that stream, and its gradient in activations.dx_TD.
  LossSums loss_and_head_backward(const PackedBatch& batch, float grad_scale, float label_smoothing,
                                  WeightUpdate update);
  // activations.dx_TD, the gradient of the stream behind the last layer, becomes that of the first one's
  // input.
  void backward_layers(const SequenceInfo& sequences, WeightUpdate update);
  void backward_embedding(const PackedBatch& batch, WeightUpdate update);
  // What forward up to the loss and backward behind the opened gradients of the head open and close, with
  // nothing computed: the gradient of nothing.
  void forward_nothing();
  void backward_nothing(WeightUpdate update);
  // Sums of squares of a group's gradients in tensors of at most this rank; nothing where squares is null.
  // Most matrices come with theirs from the product that writes them; what is left are norms and biases.
  static constexpr size_t kVector = 1, kMatrix = 2;
  void add_squares(int64_t group, size_t max_rank, double* squares);
  // Of a group, flat, by parameter.
  void show_gradients(int64_t group) const;
  SequenceInfo sequence_info(const PackedBatch& batch) const;

  ModelConfig config;
  DType dtype;
  Ops* ops;
  ParameterLayout layout;
  std::vector<AttentionBlockConfig> block_configs;  // per layer

  // Views into the caller's flat arrays, or into what `access` opened.
  ConstTensorView embedding_VD;
  std::vector<LayerWeights> layers;
  LossHeadWeights head;
  TensorView dembedding_VD;
  std::vector<LayerGrads> layer_grads;
  LossHeadGrads head_grads;
  ParameterAccess* access = nullptr;
  std::vector<std::byte*> group_weights;  // what the views point to, with `access`
  std::vector<TensorView> group_gradients;

  BetweenLayers between_layers;
  bool is_abandoned = false;  // nothing more of the pass is computed
  LayerWatch watch;
  GradientWatch gradient_watch;
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
