// Decoders (formats/huggingface/families): a stack of decoder layers on a residual stream, with the options
// of ModelConfig.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "model/blocks/rope_table.h"
#include "model/llama/activations.h"
#include "model/llama/llama_tensors.h"
#include "model/offloaded_inputs.h"
#include "model/trainable_model.h"

namespace tessera {

class LlamaModel final : public TrainableModel {
 public:
  // dtype is BF16 or F32. `ops` must outlive the model.
  LlamaModel(const ModelConfig& config, DType dtype, Ops& ops);
  static ParameterLayout parameter_layout(const ModelConfig& config);

  int64_t num_keepable_outputs() const override { return tessera::num_keepable_outputs(config()); }
  int64_t num_recomputed_attentions(const ActivationLimits& limits) const override;
  int64_t offloaded_bytes(const ActivationLimits& limits) const override;
  AsyncFileStatistics input_file_statistics() const override {
    return offloaded_ ? offloaded_->statistics() : AsyncFileStatistics();
  }
  ModelFlops flops(std::span<const int32_t> cu_seqlens, int64_t num_sources,
                   int64_t num_targets) const override;

  // Writes logits_TV F32 of every position (for tests and small inputs: batches whose logits are not cut by
  // columns).
  void forward_logits(const PackedBatch& batch, TensorView logits_TV);

  // For LlamaGenerator, and for benchmarks that time the parts of a step with all parameters bound.
  using TrainableModel::backward_embedding;
  using TrainableModel::backward_layers;
  using TrainableModel::begin;
  using TrainableModel::forward_backward_head;
  using TrainableModel::forward_embedding;
  using TrainableModel::forward_layers;
  using TrainableModel::lora_limits;
  using TrainableModel::ops;
  using TrainableModel::refresh_packed_forms;
  const LlamaWeights& weights() const { return weights_; }
  ConstTensorView embedding_VD() const {
    return config().tie_word_embeddings ? weights_.head.lm_head_VD.w_NK : weights_.embedding_VD;
  }
  const LayerConfig& layer_config(size_t layer) const { return layer_configs_[layer]; }
  // The factor of the embedding in the type of the activations.
  float embedding_scale() const;
  LossHeadConfig head_config() const;
  Activations& activations() { return activations_; }
  // The limits if the LM head is cut into the given pieces of logits.
  OpsLimits ops_limits(const ActivationLimits& limits, std::span<const LogitsPieces> logits) const;

 private:
  int64_t slot_bytes(const ActivationLimits& limits) const;          // of an offloaded input
  ActivationPolicy policy_of(const ActivationLimits& limits) const;  // on this device
  ActivationBytes arena_bytes(const ActivationLimits& limits) const override;
  void lay_out(const PackedBatch& batch, Arena& saved, Arena& working) override;
  // The limits if the LM head is cut as the loss cuts it.
  OpsLimits ops_limits(const ActivationLimits& limits) const override;
  int64_t table_bytes(const ActivationLimits& limits) const override;
  int64_t reserve_tables(const ActivationLimits& limits) override;

  // Computes the stream before the first layer, in activations_.layers[0].attention.x_TD.
  void compute_embedding(const PackedBatch& batch) override;
  void finish_embedding(const PackedBatch& batch) override;
  void scale_embedding();
  EmbeddingBuffers embedding_buffers() override {
    return {activations_.layers.front().attention.x_TD, activations_.dx_TD};
  }
  // The last layer leaves the stream in activations_.final_x_TD.
  void compute_layer(int64_t layer) override;
  void help_with_layer(int64_t layer) override;
  void help_with_layer_backward(int64_t layer) override;
  LossSums compute_loss(const PackedBatch& batch, float label_smoothing,
                        std::span<LossSums> by_sequence) override;
  // Also computes the gradient of that stream, in activations_.dx_TD.
  LossSums compute_head(const PackedBatch& batch, float grad_scale, float label_smoothing,
                        WeightUpdate update) override;
  void recompute_layer(int64_t layer) override;
  // Turns activations_.dx_TD from the gradient of the stream after the layer into that of its input.
  void compute_layer_backward(int64_t layer, WeightUpdate update) override;
  void compute_embedding_backward(const PackedBatch& batch, Update update) override;

  // The rows of the tables of rotary embeddings that the tokens of a batch take.
  std::span<const int32_t> table_rows(const PackedBatch& batch);
  // What it adds to the sum of the losses; keeps its gradient for backward.
  double add_balance_loss(float grad_scale);

  // What layers drop of the current pass is in both.
  SequenceInfo sequences_of(int64_t layer) const;
  LayerScratch scratch_of(int64_t layer) const;
  TensorView no_tokens() const;

  std::vector<LayerConfig> layer_configs_;
  LlamaWeights weights_;
  LlamaGrads grads_;
  // Of all layers, those that a token multiplies; of their adapters.
  double matrix_elements_ = 0, adapter_elements_ = 0;
  RopeTableBuffer rope_, local_rope_;
  std::vector<int32_t> table_rows_;  // of longrope
  ActivationPolicy policy_;
  Activations activations_;
  std::optional<OffloadedInputs> offloaded_;
  SequenceInfo sequences_;  // of the current batch
};

}  // namespace tessera
