// Operations that check themselves: the first step of a benchmark runs through them, so that what is timed
// afterwards is known to be correct at exactly the timed shapes.
#pragma once

#include <string>

#include "bench/kernels/verify.h"
#include "ops/forwarding_ops.h"

namespace tessera {

// Compares a sample of the results of every call with float64: elements of products, whole rows of row-wise
// operations, elements of sums over rows. Error(kInternal) names operation, shape, element, expected, found
// and bound. Packed weights are verified through the products that use them. Products with quantised weights
// are not compared: `bench gemm --weights` does that, with the elements their codes come from.
class VerifyingOps final : public ForwardingOps {
 public:
  using ForwardingOps::ForwardingOps;

  // Over all calls so far.
  const Verification& result() const { return result_; }

  void linear(ConstTensorView x_TK, const LinearWeight& weight, ConstTensorView bias_N,
              TensorView y_TN) override;
  void linear_backward_input(ConstTensorView dy_TN, const LinearWeight& weight, TensorView dx_TK,
                             Update update) override;
  void linear_backward_weight(ConstTensorView dy_TN, ConstTensorView x_TK, TensorView dw_NK,
                              WeightUpdate update) override;
  void linear_backward_bias(ConstTensorView dy_TN, TensorView db_N, Update update) override;
  void embedding(std::span<const int32_t> ids, ConstTensorView table_VD, TensorView x_TD) override;
  void embedding_backward(std::span<const int32_t> ids, ConstTensorView dx_TD, int32_t padding_id,
                          TensorView dtable_VD) override;
  void rmsnorm(ConstTensorView x_RD, ConstTensorView w_D, float eps, TensorView y_RD,
               TensorView rstd_R) override;
  void rmsnorm_backward(ConstTensorView dy_RD, ConstTensorView x_RD, ConstTensorView w_D,
                        ConstTensorView rstd_R, TensorView dx_RD, Update dx_update, TensorView dw_D,
                        Update dw_update) override;
  void add_rmsnorm(TensorView x_TD, ConstTensorView y_TD, ConstTensorView w_D, float eps, TensorView norm_TD,
                   TensorView rstd_T) override;
  void add(TensorView x, ConstTensorView y) override;
  void round_to(ConstTensorView from, TensorView to) override;
  void gather_rows(std::span<const int32_t> rows, TensorView x_TD) override;
  void scatter_rows(std::span<const int32_t> rows, TensorView x_TD) override;
  void zero(TensorView x) override;
  double sum_of_squares(ConstTensorView x) override;
  void head_rmsnorm(ConstTensorView qkv_TQ, const AttentionShape& shape, int64_t head_begin, int64_t head_end,
                    ConstTensorView w_E, float eps, TensorView y_TQ, TensorView rstd) override;
  void head_rmsnorm_backward(TensorView dqkv_TQ, ConstTensorView qkv_TQ, const AttentionShape& shape,
                             int64_t head_begin, int64_t head_end, ConstTensorView w_E, ConstTensorView rstd,
                             TensorView dw_E, Update dw_update) override;
  void rope(TensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> positions,
            const RopeTable& table, bool inverse) override;
  void attention(ConstTensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                 TensorView o_THE, TensorView lse_HT) override;
  void attention_backward(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                          ConstTensorView lse_HT, const AttentionShape& shape,
                          std::span<const int32_t> cu_seqlens, TensorView dqkv_TQ) override;
  void attention_cached(ConstTensorView qkv_TQ, const AttentionShape& shape, TensorView k_cache,
                        TensorView v_cache, int64_t cache_length, TensorView o_THE) override;
  void swiglu(ConstTensorView gate_up_TF2, TensorView h_TF) override;
  void swiglu_backward(ConstTensorView dh_TF, ConstTensorView gate_up_TF2, TensorView dgate_up_TF2,
                       TensorView h_TF) override;
  LossSums cross_entropy(ConstTensorView logits_RV, std::span<const int32_t> targets, float label_smoothing,
                         float grad_scale, TensorView dlogits_RV) override;
  void cross_entropy_add_chunk(ConstTensorView logits_RC, int64_t first_column,
                               std::span<const int32_t> targets, float label_smoothing,
                               TensorView rows) override;
  LossSums cross_entropy_loss(ConstTensorView rows, std::span<const int32_t> targets, int64_t vocab_size,
                              float label_smoothing) override;
  void cross_entropy_chunk_gradient(ConstTensorView logits_RC, int64_t first_column, int64_t vocab_size,
                                    std::span<const int32_t> targets, ConstTensorView rows,
                                    float label_smoothing, float grad_scale, TensorView dlogits_RC) override;

 private:
  Verification result_;
};

}  // namespace tessera
