// The internals of Model: the parts of a step, one by one.
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
  // Views of one parameter group in a flat array, of which only this group's elements need to exist.
  void bind_weights(int64_t group, ConstTensorView flat);
  void bind_gradients(int64_t group, TensorView flat);
  bool has_weights() const { return !embedding_VD.empty() || access != nullptr; }

  // Without `access`, only asks between_layers.
  void open_weights(int64_t group, WeightUse use);
  // With `access`: binds a group that is, or is about to be, open at `data`.
  void bind_opened_weights(int64_t group, std::byte* data);
  void close_weights(int64_t group);
  void open_gradients(int64_t group);
  void close_gradients(int64_t group);
  void open_head_weights();
  void close_head_weights();
  void open_head_gradients();
  int64_t head_group() const { return config.num_hidden_layers + 1; }

  // With the LM head cut as the loss cuts it, or into the given pieces of logits.
  OpsLimits ops_limits(const ActivationLimits& for_limits) const;
  OpsLimits ops_limits(const ActivationLimits& for_limits, std::span<const LogitsPieces> logits) const;
  void reserve(const ActivationLimits& new_limits);
  // Bytes of the packed forms of one group's matrices, or of all groups.
  int64_t packed_bytes(int64_t group, const ActivationLimits& for_limits) const;
  int64_t packed_bytes(const ActivationLimits& for_limits) const;
  // Reserves memory for them in packed_memory or in `access`.
  void reserve_packed_forms();
  // Points all matrices to their packed forms in packed_memory, or those of one group to theirs in `memory`
  // (nullptr: not kept).
  void assign_packed_forms();
  void assign_packed_forms(int64_t group, std::byte* memory);
  // Packs the current weights into packed_memory.
  void refresh_packed_forms();
  void pack_group(int64_t group, const PackShare& share);
  template <typename Body>
  void for_each_matrix(int64_t group, const Body& body);

  // Checks the batch, lays out the buffers for it and binds the workspace.
  void begin(const PackedBatch& batch);
  // Computes the stream before the first layer, in activations.layers[0].attention.x_TD.
  void forward_embedding(const PackedBatch& batch);
  // From there computes the stream after the last layer, in activations.final_x_TD.
  void forward_layers(const SequenceInfo& sequences);
  // Computes the loss from that stream, and its gradient in activations.dx_TD.
  LossSums loss_and_head_backward(const PackedBatch& batch, float grad_scale, float label_smoothing,
                                  WeightUpdate update);
  // Turns activations.dx_TD from the gradient of the stream after the last layer into that of the first
  // layer's input.
  void backward_layers(const SequenceInfo& sequences, WeightUpdate update);
  void backward_embedding(const PackedBatch& batch, WeightUpdate update);
  // Open and close the same groups as forward up to the loss, and as backward once the head's gradients are
  // open, without computing anything: the gradient is zero.
  void forward_nothing();
  void backward_nothing(WeightUpdate update);
  // Adds the squares of a group's gradients in tensors of at most this rank; does nothing if squares is null.
  // Most matrices get theirs from the product that writes them; norms and biases remain.
  static constexpr size_t kVector = 1, kMatrix = 2;
  void add_squares(int64_t group, size_t max_rank, double* squares);
  // Shows a group's gradients, flat, by parameter.
  void show_gradients(int64_t group) const;
  SequenceInfo sequence_info(const PackedBatch& batch) const;

  ModelConfig config;
  DType dtype;
  Ops* ops;
  ParameterLayout layout;
  std::vector<AttentionBlockConfig> block_configs;  // per layer

  // Views into the caller's flat arrays, or into memory that `access` opened.
  ConstTensorView embedding_VD;
  std::vector<LayerWeights> layers;
  LossHeadWeights head;
  TensorView dembedding_VD;
  std::vector<LayerGrads> layer_grads;
  LossHeadGrads head_grads;
  ParameterAccess* access = nullptr;
  std::vector<std::byte*> group_weights;  // with `access`: what the views point to
  std::vector<TensorView> group_gradients;

  BetweenLayers between_layers;
  bool is_abandoned = false;  // the rest of the pass is not computed
  LayerWatch watch;
  GradientWatch gradient_watch;
  ActivationLimits limits;
  ActivationMode mode = ActivationMode::kForwardOnly;
  DeviceBuffer saved_memory;
  DeviceBuffer working_memory;
  DeviceBuffer workspace;
  DeviceBuffer packed_memory;
  bool packed_forms_are_stale = true;
  RopeTableBuffer rope;
  Activations activations;
};

ActivationMode activation_mode(const ActivationLimits& limits);

}  // namespace tessera
