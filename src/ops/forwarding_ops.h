// Operations that forward every call: the base of those that time, check or change some of them.
#pragma once

#include <memory>
#include <utility>

#include "base/function_ref.h"
#include "ops/ops.h"

namespace tessera {

class ForwardingOps : public Ops {
 public:
  explicit ForwardingOps(Ops& ops) : ops_(&ops) {}
  explicit ForwardingOps(std::unique_ptr<Ops> ops) : owned_(std::move(ops)), ops_(owned_.get()) {}
  // Forwards calls to `ops` from now on.
  void forward_to(Ops& ops) { ops_ = &ops; }

  std::string description() const override { return ops_->description(); }
  int64_t workspace_bytes(const OpsLimits& limits) const override { return ops_->workspace_bytes(limits); }
  void bind_workspace(std::span<std::byte> workspace) override { ops_->bind_workspace(workspace); }
  int64_t packed_weight_bytes(int64_t N, int64_t K, DType dtype) const override {
    return ops_->packed_weight_bytes(N, K, dtype);
  }
  void pack_linear_weight(ConstTensorView w_NK, const PackedForms& to, RowRange rows) override {
    around("pack_linear_weight", [&] { ops_->pack_linear_weight(w_NK, to, rows); });
  }
  void linear(ConstTensorView x_TK, const LinearWeight& weight, ConstTensorView bias_N,
              TensorView y_TN) override {
    around("linear", [&] { ops_->linear(x_TK, weight, bias_N, y_TN); });
  }
  void linear_backward_input(ConstTensorView dy_TN, const LinearWeight& weight, TensorView dx_TK,
                             Update update) override {
    around("linear_backward_input", [&] { ops_->linear_backward_input(dy_TN, weight, dx_TK, update); });
  }
  void linear_backward_weight(ConstTensorView dy_TN, ConstTensorView x_TK, TensorView dw_NK,
                              WeightUpdate update) override {
    around("linear_backward_weight", [&] { ops_->linear_backward_weight(dy_TN, x_TK, dw_NK, update); });
  }
  void linear_backward_bias(ConstTensorView dy_TN, TensorView db_N, Update update) override {
    around("linear_backward_bias", [&] { ops_->linear_backward_bias(dy_TN, db_N, update); });
  }
  void embedding(std::span<const int32_t> ids, ConstTensorView table_VD, TensorView x_TD) override {
    around("embedding", [&] { ops_->embedding(ids, table_VD, x_TD); });
  }
  void embedding_backward(std::span<const int32_t> ids, ConstTensorView dx_TD, int32_t padding_id,
                          TensorView dtable_VD) override {
    around("embedding_backward", [&] { ops_->embedding_backward(ids, dx_TD, padding_id, dtable_VD); });
  }
  void rmsnorm(ConstTensorView x_RD, ConstTensorView w_D, float eps, TensorView y_RD,
               TensorView rstd_R) override {
    around("rmsnorm", [&] { ops_->rmsnorm(x_RD, w_D, eps, y_RD, rstd_R); });
  }
  void rmsnorm_backward(ConstTensorView dy_RD, ConstTensorView x_RD, ConstTensorView w_D,
                        ConstTensorView rstd_R, TensorView dx_RD, Update dx_update, TensorView dw_D,
                        Update dw_update) override {
    around("rmsnorm_backward",
           [&] { ops_->rmsnorm_backward(dy_RD, x_RD, w_D, rstd_R, dx_RD, dx_update, dw_D, dw_update); });
  }
  void add_rmsnorm(TensorView x_TD, ConstTensorView y_TD, ConstTensorView w_D, float eps, TensorView norm_TD,
                   TensorView rstd_T) override {
    around("add_rmsnorm", [&] { ops_->add_rmsnorm(x_TD, y_TD, w_D, eps, norm_TD, rstd_T); });
  }
  void add(TensorView x, ConstTensorView y) override {
    around("add", [&] { ops_->add(x, y); });
  }
  void round_to(ConstTensorView from, TensorView to) override {
    around("round_to", [&] { ops_->round_to(from, to); });
  }
  void zero(TensorView x) override {
    around("zero", [&] { ops_->zero(x); });
  }
  double sum_of_squares(ConstTensorView x) override {
    double result = 0;
    around("sum_of_squares", [&] { result = ops_->sum_of_squares(x); });
    return result;
  }
  void head_rmsnorm(ConstTensorView qkv_TQ, const AttentionShape& shape, int64_t head_begin, int64_t head_end,
                    ConstTensorView w_E, float eps, TensorView y_TQ, TensorView rstd) override {
    around("head_rmsnorm",
           [&] { ops_->head_rmsnorm(qkv_TQ, shape, head_begin, head_end, w_E, eps, y_TQ, rstd); });
  }
  void head_rmsnorm_backward(TensorView dqkv_TQ, ConstTensorView qkv_TQ, const AttentionShape& shape,
                             int64_t head_begin, int64_t head_end, ConstTensorView w_E, ConstTensorView rstd,
                             TensorView dw_E, Update dw_update) override {
    around("head_rmsnorm_backward", [&] {
      ops_->head_rmsnorm_backward(dqkv_TQ, qkv_TQ, shape, head_begin, head_end, w_E, rstd, dw_E, dw_update);
    });
  }
  void rope(TensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> positions,
            const RopeTable& table, bool inverse) override {
    around("rope", [&] { ops_->rope(qkv_TQ, shape, positions, table, inverse); });
  }
  void attention(ConstTensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                 TensorView o_THE, TensorView lse_HT) override {
    around("attention", [&] { ops_->attention(qkv_TQ, shape, cu_seqlens, o_THE, lse_HT); });
  }
  void attention_backward(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                          ConstTensorView lse_HT, const AttentionShape& shape,
                          std::span<const int32_t> cu_seqlens, TensorView dqkv_TQ) override {
    around("attention_backward",
           [&] { ops_->attention_backward(do_THE, qkv_TQ, o_THE, lse_HT, shape, cu_seqlens, dqkv_TQ); });
  }
  void attention_cached(ConstTensorView qkv_TQ, const AttentionShape& shape, TensorView k_cache,
                        TensorView v_cache, int64_t cache_length, TensorView o_THE) override {
    around("attention_cached",
           [&] { ops_->attention_cached(qkv_TQ, shape, k_cache, v_cache, cache_length, o_THE); });
  }
  void swiglu(ConstTensorView gate_up_TF2, TensorView h_TF) override {
    around("swiglu", [&] { ops_->swiglu(gate_up_TF2, h_TF); });
  }
  void swiglu_backward(ConstTensorView dh_TF, ConstTensorView gate_up_TF2, TensorView dgate_up_TF2,
                       TensorView h_TF) override {
    around("swiglu_backward", [&] { ops_->swiglu_backward(dh_TF, gate_up_TF2, dgate_up_TF2, h_TF); });
  }
  LossSums cross_entropy(ConstTensorView logits_RV, std::span<const int32_t> targets, float label_smoothing,
                         float grad_scale, TensorView dlogits_RV) override {
    LossSums result;
    around("cross_entropy", [&] {
      result = ops_->cross_entropy(logits_RV, targets, label_smoothing, grad_scale, dlogits_RV);
    });
    return result;
  }
  void cross_entropy_add_chunk(ConstTensorView logits_RC, int64_t first_column,
                               std::span<const int32_t> targets, float label_smoothing,
                               std::span<SoftmaxRow> rows) override {
    around("cross_entropy",
           [&] { ops_->cross_entropy_add_chunk(logits_RC, first_column, targets, label_smoothing, rows); });
  }
  LossSums cross_entropy_loss(std::span<const SoftmaxRow> rows, std::span<const int32_t> targets,
                              int64_t vocab_size, float label_smoothing) override {
    LossSums result;
    around("cross_entropy",
           [&] { result = ops_->cross_entropy_loss(rows, targets, vocab_size, label_smoothing); });
    return result;
  }
  void cross_entropy_chunk_gradient(ConstTensorView logits_RC, int64_t first_column, int64_t vocab_size,
                                    std::span<const int32_t> targets, std::span<const SoftmaxRow> rows,
                                    float label_smoothing, float grad_scale, TensorView dlogits_RC) override {
    around("cross_entropy", [&] {
      ops_->cross_entropy_chunk_gradient(logits_RC, first_column, vocab_size, targets, rows, label_smoothing,
                                         grad_scale, dlogits_RC);
    });
  }

 protected:
  // Makes the call. cross_entropy_add_chunk() and the like are "cross_entropy".
  virtual void around(const char* /*operation*/, FunctionRef<void()> call) { call(); }
  Ops& ops() const { return *ops_; }

 private:
  std::unique_ptr<Ops> owned_;
  Ops* ops_;
};

}  // namespace tessera
