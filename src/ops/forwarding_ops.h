// Ops that pass every call on to other Ops, with one hook around each: for timing, planning and testing.
#pragma once

#include <span>
#include <string>

#include "base/function_ref.h"
#include "ops/ops.h"

namespace tessera {

// An operation about to be carried out. Its tensors are in the order of the operation's parameters; absent
// ones are empty views. The other Ops get whatever the hook writes to them.
struct OpCall {
  // Besides the tensors, the time of an operation depends on these.
  struct Details {
    Update update = Update::kOverwrite;               // of its first output
    bool squares = false;                             // sums those of its result
    bool packed = false;                              // the weight's packed forms are kept
    Quantization quantization = Quantization::kNone;  // of the weight
    const AttentionShape* attention = nullptr;        // with the row starts, of attention alone
    std::span<const int32_t> cu_seqlens = {};
    const AttentionInputs* general = nullptr;  // of general attention, which has no row starts
  };

  const char* name;  // "rmsnorm_backward"
  std::span<ConstTensorView* const> inputs;
  std::span<TensorView* const> outputs;  // also those that are read and written
  Details details = {};
};

class ForwardingOps : public Ops {
 public:
  explicit ForwardingOps(Ops& ops) : ops_(&ops) {}
  // Forwards calls to `ops` from now on.
  void forward_to(Ops& ops) { ops_ = &ops; }

  Device& device() const override { return ops_->device(); }
  std::string description() const override { return ops_->description(); }
  int64_t workspace_bytes(const OpsLimits& limits) const override { return ops_->workspace_bytes(limits); }
  void bind_workspace(std::span<std::byte> workspace) override { ops_->bind_workspace(workspace); }
  int64_t packed_weight_bytes(int64_t N, int64_t K, DType dtype) const override {
    return ops_->packed_weight_bytes(N, K, dtype);
  }

  void pack_linear_weight(ConstTensorView w_NK, const PackedForms& to, RowRange rows) override;
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
  void lora_place(ConstTensorView b_NR, const LoraBlock& block, TensorView e_RN) override;
  void lora_take(ConstTensorView de_RN, const LoraBlock& block, TensorView db_NR, Update update) override;
  void dropout(ConstTensorView x_TD, const Dropout& which, TensorView y_TD, Update update) override;
  void rmsnorm(ConstTensorView x_RD, const NormWeight& w_D, float eps, TensorView y_RD,
               TensorView rstd_R) override;
  void rmsnorm_backward(ConstTensorView dy_RD, ConstTensorView x_RD, const NormWeight& w_D,
                        ConstTensorView rstd_R, TensorView dx_RD, Update dx_update, TensorView dw_D,
                        Update dw_update) override;
  void add_rmsnorm(TensorView x_TD, ConstTensorView y_TD, const NormWeight& w_D, float eps,
                   TensorView norm_TD, TensorView rstd_T) override;
  void add(TensorView x, ConstTensorView y) override;
  void round_to(ConstTensorView from, TensorView to) override;
  void gather_rows(std::span<const int32_t> rows, TensorView x_TD) override;
  void scatter_rows(std::span<const int32_t> rows, TensorView x_TD) override;
  void zero(TensorView x) override;
  double sum_of_squares(ConstTensorView x) override;
  void head_rmsnorm(ConstTensorView qkv_TQ, const AttentionShape& shape, int64_t head_begin, int64_t head_end,
                    const NormWeight& w_E, float eps, TensorView y_TQ, TensorView rstd) override;
  void head_rmsnorm_backward(TensorView dqkv_TQ, ConstTensorView qkv_TQ, const AttentionShape& shape,
                             int64_t head_begin, int64_t head_end, const NormWeight& w_E,
                             ConstTensorView rstd, TensorView dw_E, Update dw_update) override;
  void rope(TensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> positions,
            const RopeTable& table, bool inverse) override;
  void attention(ConstTensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                 TensorView o_THE, TensorView lse_HT) override;
  void attention_backward(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                          ConstTensorView lse_HT, const AttentionShape& shape,
                          std::span<const int32_t> cu_seqlens, TensorView dqkv_TQ) override;
  void attention_cached(ConstTensorView qkv_TQ, const AttentionShape& shape, TensorView k_cache,
                        TensorView v_cache, int64_t cache_length, ConstTensorView sinks_H,
                        TensorView o_THE) override;
  void general_attention(const AttentionInputs& inputs, const AttentionShape& shape, TensorView o_THE,
                         TensorView lse_HT) override;
  void general_attention_backward(ConstTensorView do_THE, const AttentionInputs& inputs,
                                  ConstTensorView o_THE, ConstTensorView lse_HT, const AttentionShape& shape,
                                  const AttentionGradients& gradients) override;
  void activation(Activation which, ConstTensorView pre_TP, TensorView h_TF) override;
  void activation_backward(Activation which, ConstTensorView dh_TF, ConstTensorView pre_TP,
                           TensorView dpre_TP, TensorView h_TF) override;
  void layernorm(ConstTensorView x_RD, ConstTensorView w_D, ConstTensorView b_D, float eps, TensorView y_RD,
                 TensorView stats_R2) override;
  void layernorm_backward(ConstTensorView dy_RD, ConstTensorView x_RD, ConstTensorView w_D,
                          ConstTensorView stats_R2, TensorView dx_RD, Update dx_update, TensorView dw_D,
                          TensorView db_D, Update dw_update) override;
  void scale(ConstTensorView x, float factor, TensorView y) override;
  void soft_cap(TensorView x, float cap) override;
  void soft_cap_backward(ConstTensorView y, float cap, TensorView dx) override;
  // Spreads the tokens evenly over the experts if the other Ops are not made to carry out the call.
  void route(TensorView p_TE, ExpertWeights form, TensorView w_TK, ExpertRows& rows,
             RouterLoad* load) override;
  void route_backward(ConstTensorView p_TE, const ExpertRows& rows, ExpertWeights form, ConstTensorView w_TK,
                      ConstTensorView dw_TK, std::span<const float> balance_E, TensorView dl_TE) override;
  void gather_expert_rows(ConstTensorView x_TD, const ExpertRows& rows, TensorView x_RD) override;
  void combine_expert_rows(ConstTensorView y_RD, const ExpertRows& rows, ConstTensorView w_TK,
                           TensorView y_TD, Update update) override;
  void weigh_expert_rows(const ExpertRows& rows, ConstTensorView w_TK, TensorView a_RF, TensorView b_RF,
                         TensorView dw_TK) override;
  void add_expert_bias(const ExpertRows& rows, ConstTensorView b_EN, TensorView y_RN) override;
  void expert_bias_backward(const ExpertRows& rows, ConstTensorView g_RN, ConstTensorView w_TK,
                            ConstTensorView b_EN, TensorView dw_TK, TensorView db_EN, Update update) override;
  void clamped_swiglu(ConstTensorView pre_TF2, const ClampedSwiglu& clamp, TensorView h_TF) override;
  void clamped_swiglu_backward(ConstTensorView dh_TF, ConstTensorView pre_TF2, const ClampedSwiglu& clamp,
                               TensorView dpre_TF2, TensorView h_TF) override;
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
  void adamw(TensorView weights, TensorView remainders, ConstTensorView gradient, TensorView exp_avg,
             TensorView exp_avg_sq, int64_t first_element, const AdamWScalars& scalars) override;

 protected:
  // The hook: `run` makes the other Ops carry out the call. Called exactly once, or never by Ops that compute
  // nothing: numbers are zero in that case.
  virtual void around(const OpCall& /*call*/, FunctionRef<void()> run) { run(); }

 private:
  template <typename Run>
  void forward(const char* name, std::initializer_list<ConstTensorView*> inputs,
               std::initializer_list<TensorView*> outputs, const Run& run,
               const OpCall::Details& details = {});

  Ops* ops_;
};

}  // namespace tessera
