// Operations that forward every call, for tests that override one of them.
#pragma once

#include <memory>
#include <utility>

#include "ops/ops.h"

namespace tessera {

class ForwardingOps : public Ops {
 public:
  explicit ForwardingOps(std::unique_ptr<Ops> ops) : ops_(std::move(ops)) {}

  std::string description() const override { return ops_->description(); }
  int64_t workspace_bytes(const OpsLimits& limits) const override { return ops_->workspace_bytes(limits); }
  void bind_workspace(std::span<std::byte> workspace) override { ops_->bind_workspace(workspace); }
  int64_t packed_weight_bytes(int64_t N, int64_t K, DType dtype) const override {
    return ops_->packed_weight_bytes(N, K, dtype);
  }
  void pack_linear_weight(ConstTensorView w_NK, const PackedForms& to, RowRange rows) override {
    ops_->pack_linear_weight(w_NK, to, rows);
  }
  void linear(ConstTensorView x_TK, const LinearWeight& weight, ConstTensorView bias_N,
              TensorView y_TN) override {
    ops_->linear(x_TK, weight, bias_N, y_TN);
  }
  void linear_backward_input(ConstTensorView dy_TN, const LinearWeight& weight, TensorView dx_TK,
                             Update update) override {
    ops_->linear_backward_input(dy_TN, weight, dx_TK, update);
  }
  void linear_backward_weight(ConstTensorView dy_TN, ConstTensorView x_TK, TensorView dw_NK,
                              WeightUpdate update) override {
    ops_->linear_backward_weight(dy_TN, x_TK, dw_NK, update);
  }
  void linear_backward_bias(ConstTensorView dy_TN, TensorView db_N, Update update) override {
    ops_->linear_backward_bias(dy_TN, db_N, update);
  }
  void embedding(std::span<const int32_t> ids, ConstTensorView table_VD, TensorView x_TD) override {
    ops_->embedding(ids, table_VD, x_TD);
  }
  void embedding_backward(std::span<const int32_t> ids, ConstTensorView dx_TD, int32_t padding_id,
                          TensorView dtable_VD) override {
    ops_->embedding_backward(ids, dx_TD, padding_id, dtable_VD);
  }
  void rmsnorm(ConstTensorView x_RD, ConstTensorView w_D, float eps, TensorView y_RD,
               TensorView rstd_R) override {
    ops_->rmsnorm(x_RD, w_D, eps, y_RD, rstd_R);
  }
  void rmsnorm_backward(ConstTensorView dy_RD, ConstTensorView x_RD, ConstTensorView w_D,
                        ConstTensorView rstd_R, TensorView dx_RD, Update dx_update, TensorView dw_D,
                        Update dw_update) override {
    ops_->rmsnorm_backward(dy_RD, x_RD, w_D, rstd_R, dx_RD, dx_update, dw_D, dw_update);
  }
  void add_rmsnorm(TensorView x_TD, ConstTensorView y_TD, ConstTensorView w_D, float eps, TensorView norm_TD,
                   TensorView rstd_T) override {
    ops_->add_rmsnorm(x_TD, y_TD, w_D, eps, norm_TD, rstd_T);
  }
  void add(TensorView x, ConstTensorView y) override { ops_->add(x, y); }
  void round_to(ConstTensorView from, TensorView to) override { ops_->round_to(from, to); }
  void zero(TensorView x) override { ops_->zero(x); }
  double sum_of_squares(ConstTensorView x) override { return ops_->sum_of_squares(x); }
  void head_rmsnorm(ConstTensorView qkv_TQ, const AttentionShape& shape, int64_t head_begin, int64_t head_end,
                    ConstTensorView w_E, float eps, TensorView y_TQ, TensorView rstd) override {
    ops_->head_rmsnorm(qkv_TQ, shape, head_begin, head_end, w_E, eps, y_TQ, rstd);
  }
  void head_rmsnorm_backward(TensorView dqkv_TQ, ConstTensorView qkv_TQ, const AttentionShape& shape,
                             int64_t head_begin, int64_t head_end, ConstTensorView w_E, ConstTensorView rstd,
                             TensorView dw_E, Update dw_update) override {
    ops_->head_rmsnorm_backward(dqkv_TQ, qkv_TQ, shape, head_begin, head_end, w_E, rstd, dw_E, dw_update);
  }
  void rope(TensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> positions,
            const RopeTable& table, bool inverse) override {
    ops_->rope(qkv_TQ, shape, positions, table, inverse);
  }
  void attention(ConstTensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                 TensorView o_THE, TensorView lse_HT) override {
    ops_->attention(qkv_TQ, shape, cu_seqlens, o_THE, lse_HT);
  }
  void attention_backward(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                          ConstTensorView lse_HT, const AttentionShape& shape,
                          std::span<const int32_t> cu_seqlens, TensorView dqkv_TQ) override {
    ops_->attention_backward(do_THE, qkv_TQ, o_THE, lse_HT, shape, cu_seqlens, dqkv_TQ);
  }
  void attention_cached(ConstTensorView qkv_TQ, const AttentionShape& shape, TensorView k_cache,
                        TensorView v_cache, int64_t cache_length, TensorView o_THE) override {
    ops_->attention_cached(qkv_TQ, shape, k_cache, v_cache, cache_length, o_THE);
  }
  void swiglu(ConstTensorView gate_up_TF2, TensorView h_TF) override { ops_->swiglu(gate_up_TF2, h_TF); }
  void swiglu_backward(ConstTensorView dh_TF, ConstTensorView gate_up_TF2, TensorView dgate_up_TF2,
                       TensorView h_TF) override {
    ops_->swiglu_backward(dh_TF, gate_up_TF2, dgate_up_TF2, h_TF);
  }
  LossSums cross_entropy(ConstTensorView logits_RV, std::span<const int32_t> targets, float label_smoothing,
                         float grad_scale, TensorView dlogits_RV) override {
    return ops_->cross_entropy(logits_RV, targets, label_smoothing, grad_scale, dlogits_RV);
  }
  void cross_entropy_add_chunk(ConstTensorView logits_RC, int64_t first_column,
                               std::span<const int32_t> targets, float label_smoothing,
                               std::span<SoftmaxRow> rows) override {
    ops_->cross_entropy_add_chunk(logits_RC, first_column, targets, label_smoothing, rows);
  }
  LossSums cross_entropy_loss(std::span<const SoftmaxRow> rows, std::span<const int32_t> targets,
                              int64_t vocab_size, float label_smoothing) override {
    return ops_->cross_entropy_loss(rows, targets, vocab_size, label_smoothing);
  }
  void cross_entropy_chunk_gradient(ConstTensorView logits_RC, int64_t first_column, int64_t vocab_size,
                                    std::span<const int32_t> targets, std::span<const SoftmaxRow> rows,
                                    float label_smoothing, float grad_scale, TensorView dlogits_RC) override {
    ops_->cross_entropy_chunk_gradient(logits_RC, first_column, vocab_size, targets, rows, label_smoothing,
                                       grad_scale, dlogits_RC);
  }

 private:
  std::unique_ptr<Ops> ops_;
};

}  // namespace tessera
