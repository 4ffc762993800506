// T5: an encoder over the tokens of the sources, and a decoder over those of the targets that attends to its
// output. Raffel et al., "Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer",
// 2020.
//
// The groups of its parameters are the embedding, the encoder's layers, the decoder's, and the head. A batch
// has all sources first, then their targets (PackedBatch::num_sources).
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/encoder_decoder/encoder_decoder_activations.h"
#include "model/encoder_decoder/encoder_decoder_tensors.h"
#include "model/trainable_model.h"

namespace tessera {

class EncoderDecoderModel final : public TrainableModel {
 public:
  // dtype is BF16 or F32. `ops` are the host's and must outlive the model.
  EncoderDecoderModel(const ModelConfig& config, DType dtype, Ops& ops);
  static ParameterLayout parameter_layout(const ModelConfig& config);

  ModelFlops flops(std::span<const int32_t> cu_seqlens, int64_t num_sources,
                   int64_t num_targets) const override;
  int64_t num_keepable_outputs() const override { return tessera::num_keepable_outputs(config()); }
  int64_t num_recomputed_attentions(const ActivationLimits& limits) const override {
    return tessera::num_recomputed_attentions(config(), dtype(), limits);
  }

  // Writes logits_UV F32 of every token of the targets (for tests and small inputs: batches whose logits are
  // not cut by columns).
  void forward_logits(const PackedBatch& batch, TensorView logits_UV);

 private:
  friend class EncoderDecoderGenerator;  // the parts of a pass, for one token at a time

  bool is_encoder_layer(int64_t layer) const { return layer < stacks().num_encoder_layers; }
  const EncoderDecoder& stacks() const { return *config().encoder_decoder; }
  int64_t num_layers() const { return config().num_hidden_layers; }
  float norm_eps() const { return static_cast<float>(config().rms_norm_eps); }
  LossHeadConfig head_config() const;
  ConstTensorView embedding_VD() const {
    return config().tie_word_embeddings ? weights_.head.lm_head_VD.w_NK : weights_.embedding_VD;
  }
  std::vector<int32_t> buckets(bool both_directions) const;
  // Lays out a batch of these sizes.
  void lay_out(std::span<const KeptOutputs> kept, bool training, int64_t num_source_tokens,
               int64_t num_target_tokens, Arena& saved, Arena& working,
               EncoderDecoderActivations& activations) const;

  ActivationBytes arena_bytes(const ActivationLimits& limits) const override;
  void lay_out(const PackedBatch& batch, Arena& saved, Arena& working) override;
  OpsLimits ops_limits(const ActivationLimits& limits) const override;
  int64_t reserve_tables(const ActivationLimits& limits) override;

  void compute_embedding(const PackedBatch& batch) override;
  EmbeddingBuffers embedding_buffers() override { return {activations_.embedding_TD, activations_.dx_TD}; }
  void finish_embedding(const PackedBatch& batch) override;
  void compute_layer(int64_t layer) override;
  LossSums compute_loss(const PackedBatch& batch, float label_smoothing,
                        std::span<LossSums> by_sequence) override;
  LossSums compute_head(const PackedBatch& batch, float grad_scale, float label_smoothing,
                        WeightUpdate update) override;
  void recompute_layer(int64_t layer) override;
  void compute_layer_backward(int64_t layer, WeightUpdate update) override;
  void compute_embedding_backward(const PackedBatch& batch, Update update) override;

  bool is_first_of_stack(int64_t layer) const { return layer == 0 || layer == stacks().num_encoder_layers; }
  bool is_last_of_stack(int64_t layer) const {
    return layer + 1 == stacks().num_encoder_layers || layer + 1 == num_layers();
  }
  TensorView output_of(int64_t layer);  // what the layer adds to the stream
  SequenceInfo sequences_of(int64_t layer) const;
  CrossSequences cross_sequences_of(int64_t layer) const;
  // What the pass drops of the tokens of the encoder's or of the decoder's stack.
  Dropout stack_dropout(double rate, DropoutPlace place, int64_t layer) const;
  StackLayerScratch scratch_of(int64_t layer) const;
  std::span<const int32_t> targets_of(const PackedBatch& batch) const {
    return std::span(batch.targets).subspan(static_cast<size_t>(cu_sources_.back()));
  }
  TensorView dx_of_sources() const { return activations_.dx_TD.rows(0, cu_sources_.back()); }
  TensorView dx_of_targets() const {
    return activations_.dx_TD.rows(cu_sources_.back(), activations_.dx_TD.dim(0));
  }

  AttentionBlockConfig encoder_block_, decoder_block_;
  CrossAttentionConfig cross_block_;
  MlpBlockConfig mlp_block_;
  EncoderDecoderWeights weights_;
  EncoderDecoderGrads grads_;
  double encoder_matrix_elements_ = 0, decoder_matrix_elements_ = 0, memory_matrix_elements_ = 0;
  std::vector<int32_t> encoder_buckets_, decoder_buckets_;
  PositionBias encoder_bias_, decoder_bias_;
  std::vector<KeptOutputs> kept_;  // by layer
  EncoderDecoderActivations activations_;
  // Of the current batch: row starts of the sources and, from 0, of the targets.
  std::span<const int32_t> cu_sources_;
  std::vector<int32_t> cu_targets_;
  Dropout source_dropout_, target_dropout_;
};

}  // namespace tessera
