// An encoder with a head that predicts masked tokens: BERT (Devlin et al., 2019), XLM-RoBERTa (Conneau et
// al., 2020) and ModernBERT (Warner et al., 2024).
//
//   embedding  x = layernorm(words + positions + types)
//   BERT       x = layernorm(x + attention(x)),  x = layernorm(x + mlp(x))
//   ModernBERT x += attention(layernorm(x)),  x += mlp(layernorm(x));  after the last layer x = layernorm(x)
//   head       logits = layernorm(f(x w^T + b)) words^T + b, of the tokens that have a target
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/blocks/rope_table.h"
#include "model/encoder/encoder_tensors.h"
#include "model/trainable_model.h"

namespace tessera {

struct EncoderLayerSaved {
  AttentionSaved attention;  // x_TD: the layer's input
  TensorView sum_TD;         // x + attention
  TensorView stats_T2;       // F32, of the norm of x or of that sum
  MlpSaved mlp;              // x_TD: of BERT, that sum's norm + mlp
  TensorView mlp_stats_T2;   // F32
};

struct EncoderActivations {
  std::vector<EncoderLayerSaved> layers;
  TensorView embedding_TD;  // before its norm
  TensorView embedding_stats_T2;
  TensorView final_x_TD;  // after the last layer
  TensorView head_x_TD;   // what the head reads, which it rearranges
  TensorView final_stats_T2;
  TensorView dx_TD;
  AttentionScratch attention;
  MlpScratch mlp;
  LossHeadScratch loss;
  TargetRows target_rows;
};

class EncoderModel final : public TrainableModel {
 public:
  // dtype is BF16 or F32. `ops` are the host's and must outlive the model.
  EncoderModel(const ModelConfig& config, DType dtype, Ops& ops);
  static ParameterLayout parameter_layout(const ModelConfig& config);

  ModelFlops flops(std::span<const int32_t> cu_seqlens, int64_t num_sources,
                   int64_t num_targets) const override;
  int64_t num_keepable_outputs() const override { return tessera::num_keepable_outputs(config()); }
  int64_t num_recomputed_attentions(const ActivationLimits& limits) const override {
    return tessera::num_recomputed_attentions(config(), dtype(), limits);
  }

 private:
  const EncoderOnly& encoder() const { return *config().encoder; }
  float norm_eps() const { return static_cast<float>(config().rms_norm_eps); }
  LossHeadConfig head_config() const { return {.norm = norm_eps(), .transform = Activation::kGelu}; }
  bool is_windowed(int64_t layer) const {
    return !config().sliding_window.empty() && config().sliding_window[static_cast<size_t>(layer)] != 0;
  }
  SequenceInfo sequences_of(int64_t layer) const;
  MlpScratch mlp_scratch_of(int64_t layer) const;
  void lay_out(std::span<const KeptOutputs> kept, const ActivationLimits& limits, int64_t num_tokens,
               Arena& saved, Arena& working, EncoderActivations& activations) const;

  ActivationBytes arena_bytes(const ActivationLimits& limits) const override;
  void lay_out(const PackedBatch& batch, Arena& saved, Arena& working) override;
  OpsLimits ops_limits(const ActivationLimits& limits) const override;
  int64_t table_bytes(const ActivationLimits& limits) const override;
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

  TensorView output_of(int64_t layer);
  // The layer up to the sum of x and attention, but for what is kept.
  void compute_sum(int64_t layer, const KeptOutputs& kept);
  TensorView head_input();
  void backward_norm_first(int64_t layer, WeightUpdate update);
  void backward_norm_after(int64_t layer, WeightUpdate update);

  std::vector<AttentionBlockConfig> block_configs_;  // per layer
  MlpBlockConfig mlp_config_;
  EncoderWeights weights_;
  EncoderGrads grads_;
  double matrix_elements_ = 0;
  std::vector<KeptOutputs> kept_;  // by layer
  RopeTableBuffer rope_, local_rope_;
  EncoderActivations activations_;
  SequenceInfo sequences_;             // of the current batch
  std::vector<int32_t> position_ids_;  // rows of the table of positions
  std::vector<int32_t> type_ids_;
  Update update_of_head_ = Update::kOverwrite;
};

}  // namespace tessera
