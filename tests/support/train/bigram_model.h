// A model that is not a Llama: predicts a token from the one before it, with an embedding, one linear layer
// and an LM head. It shows, and the tests that use it check, how little a family has to state.
//
//   forward:  (1) x = embedding[ids]    (2) y = x w^T    (3) logits = y head^T    (4) loss
#pragma once

#include <memory>
#include <span>

#include "model/allocate.h"
#include "model/trainable_model.h"

namespace tessera {

inline ModelConfig bigram_config() {
  ModelConfig config;
  config.vocab_size = 37;
  config.hidden_size = 20;
  return config;
}

class BigramModel final : public TrainableModel {
 public:
  BigramModel(const ModelConfig& config, DType dtype, Ops& ops) : TrainableModel(config, dtype, ops) {
    const int64_t V = config.vocab_size, D = config.hidden_size;
    list_tensors(
        {{0, ParameterKind::kEmbedding, {{"embedding.weight", {V, D}}}, &embedding_VD_, &dembedding_VD_},
         {1, ParameterKind::kMatrix, {{"linear.weight", {D, D}}}, &w_DD_, &dw_DD_},
         {2, ParameterKind::kLmHead, {{"head.weight", {V, D}}}, &head_VD_, &dhead_VD_}});
  }

  ModelFlops flops(std::span<const int32_t> cu_seqlens, int64_t /*num_sources*/,
                   int64_t num_targets) const override {
    const auto D = static_cast<double>(config().hidden_size), V = static_cast<double>(config().vocab_size);
    return {.layers = 2 * cu_seqlens.back() * D * D, .lm_head = 2 * static_cast<double>(num_targets) * V * D};
  }

 private:
  struct Buffers {
    TensorView x_TD, y_TD, logits_TV;     // kept for backward
    TensorView dlogits_TV, dy_TD, dx_TD;  // training
  };

  Buffers allocate(int64_t num_tokens, Arena& saved, Arena& working) const {
    const Shape stream = {num_tokens, config().hidden_size}, logits = {num_tokens, config().vocab_size};
    Buffers buffers;
    buffers.x_TD = allocate_tensor(saved, dtype(), stream);
    buffers.y_TD = allocate_tensor(saved, dtype(), stream);
    buffers.logits_TV = allocate_tensor(working, DType::kF32, logits);
    buffers.dlogits_TV = allocate_tensor(working, dtype(), logits);
    buffers.dy_TD = allocate_tensor(working, dtype(), stream);
    buffers.dx_TD = allocate_tensor(working, dtype(), stream);
    return buffers;
  }

  ActivationBytes arena_bytes(const ActivationLimits& limits) const override {
    Arena saved = Arena::measuring(), working = Arena::measuring();
    allocate(limits.max_tokens, saved, working);
    return {saved.high_water_bytes(), working.high_water_bytes()};
  }
  void lay_out(const PackedBatch& batch, Arena& saved, Arena& working) override {
    buffers_ = allocate(batch.num_tokens(), saved, working);
  }
  OpsLimits ops_limits(const ActivationLimits& limits) const override {
    OpsLimits result = ops_limits_of_layers(limits);
    const int64_t V = config().vocab_size, D = config().hidden_size;
    result.max_logits_rows = limits.max_tokens;
    result.linears.push_back({limits.max_tokens, {V, D, limits.pack_weights ? V : 0}});
    return result;
  }

  void compute_embedding(const PackedBatch& batch) override {
    ops().embedding(batch.input_ids, embedding_VD_, buffers_.x_TD);
    show(-1, "embedding", buffers_.x_TD);
  }
  EmbeddingBuffers embedding_buffers() override { return {buffers_.x_TD, buffers_.dx_TD}; }
  void compute_layer(int64_t layer) override {
    ops().linear(buffers_.x_TD, w_DD_, /*bias_N=*/{}, buffers_.y_TD);
    show(layer, "linear", buffers_.y_TD);
  }
  LossSums compute_loss(const PackedBatch& batch, float label_smoothing,
                        std::span<LossSums> by_sequence) override {
    TESSERA_CHECK(by_sequence.empty(), "losses of {} sequences", by_sequence.size());
    ops().linear(buffers_.y_TD, head_VD_, /*bias_N=*/{}, buffers_.logits_TV);
    return ops().cross_entropy(buffers_.logits_TV, batch.targets, label_smoothing, 1, /*dlogits_RV=*/{});
  }
  LossSums compute_head(const PackedBatch& batch, float grad_scale, float label_smoothing,
                        WeightUpdate update) override {
    if (batch.num_targets == 0) return {};
    ops().linear(buffers_.y_TD, head_VD_, /*bias_N=*/{}, buffers_.logits_TV);
    const LossSums sums = ops().cross_entropy(buffers_.logits_TV, batch.targets, label_smoothing, grad_scale,
                                              buffers_.dlogits_TV);
    ops().linear_backward_input(buffers_.dlogits_TV, head_VD_, buffers_.dy_TD, Update::kOverwrite);
    ops().linear_backward_weight(buffers_.dlogits_TV, buffers_.y_TD, dhead_VD_, update);
    return sums;
  }
  void recompute_layer(int64_t layer) override { compute_layer(layer); }
  void compute_layer_backward(int64_t /*layer*/, WeightUpdate update) override {
    ops().linear_backward_input(buffers_.dy_TD, w_DD_, buffers_.dx_TD, Update::kOverwrite);
    ops().linear_backward_weight(buffers_.dy_TD, buffers_.x_TD, dw_DD_, update);
  }
  void compute_embedding_backward(const PackedBatch& batch, Update update) override {
    if (update == Update::kOverwrite) ops().zero(dembedding_VD_);
    ops().embedding_backward(batch.input_ids, buffers_.dx_TD, kNoPaddingId, dembedding_VD_);
  }

  ConstTensorView embedding_VD_;
  LinearWeight w_DD_, head_VD_;
  TensorView dembedding_VD_, dw_DD_, dhead_VD_;
  Buffers buffers_;
};

}  // namespace tessera
