#include "ops/cpu_ops.h"

#include <algorithm>

#include "kernels/activation/activation.h"
#include "kernels/attention/attention.h"
#include "kernels/clamped_swiglu/clamped_swiglu.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gemm/gemm.h"
#include "kernels/layernorm/layernorm.h"
#include "kernels/moe/moe.h"
#include "kernels/optimizer/element_update.h"
#include "kernels/quantized_weight/quantized_weight.h"
#include "kernels/registry.h"
#include "kernels/rmsnorm/rmsnorm.h"
#include "kernels/rope/rope.h"
#include "kernels/swiglu/swiglu.h"

namespace tessera {
namespace {

// Calls run one after another, so all kernels share one scratch buffer.
class CpuOps final : public Ops {
 public:
  explicit CpuOps(ThreadPool& pool) : pool_(pool) {}

  Device& device() const override { return host_device(); }

  std::string description() const override {
    std::string text = "cpu:";
    for (const KernelReport& report : kernel_reports()) {
      const ImplementationReport& chosen = report.implementations[report.chosen];
      text += fmt::format("{} {} {} ({})", text.back() == ':' ? "" : ",", report.kernel, chosen.name,
                          isa_name(chosen.isa));
    }
    return text;
  }

  int64_t workspace_bytes(const OpsLimits& limits) const override {
    const AttentionShape& heads = limits.attention;
    const int64_t num_threads = pool_.num_threads();
    const int64_t general_bytes =
        limits.general_attention
            ? general_attention_scratch_bytes(heads, limits.max_tokens, limits.position_buckets, pool_)
            : 0;
    int64_t bytes = std::max({attention_scratch_bytes(heads, limits.max_tokens, pool_), general_bytes,
                              cross_entropy_scratch_bytes(limits.max_logits_rows),
                              sum_of_squares_scratch_bytes(limits.max_sum_elements)});
    for (const LinearLimits& linear : limits.linears) {
      if (linear.quantization != Quantization::kNone) {
        const ConstQuantizedMatrix weight = {linear.quantization, nullptr, linear.weight.N, linear.weight.K};
        bytes = std::max(bytes, quantized_scratch_bytes(weight, linear.max_rows, limits.dtype, num_threads,
                                                        limits.training || linear.transposed));
        continue;
      }
      bytes = std::max(bytes, gemm_scratch_bytes({linear.max_rows, linear.weight, limits.dtype, num_threads},
                                                 limits.training || linear.transposed));
    }
    if (limits.training) {
      bytes = std::max({bytes, rmsnorm_backward_scratch_bytes(limits.max_tokens, limits.hidden_size),
                        head_rmsnorm_backward_scratch_bytes(
                            limits.max_tokens, std::max(heads.head_dim, limits.head_norm_width))});
    }
    return bytes;
  }

  void bind_workspace(std::span<std::byte> workspace) override { scratch_ = workspace; }

  int64_t packed_weight_bytes(int64_t N, int64_t K, DType dtype) const override {
    return tessera::packed_weight_bytes(N, K, dtype);
  }
  void pack_linear_weight(ConstTensorView w_NK, const PackedForms& to, RowRange rows) override {
    tessera::pack_linear_weight(w_NK, to, rows, pool_);
  }

  void linear(ConstTensorView x_TK, const LinearWeight& weight, ConstTensorView bias_N,
              TensorView y_TN) override {
    if (weight.is_quantized()) {
      return quantized_forward(x_TK, weight.quantized, bias_N, y_TN, scratch_, pool_);
    }
    gemm_forward(x_TK, weight, bias_N, y_TN, scratch_, pool_);
  }
  void linear_backward_input(ConstTensorView dy_TN, const LinearWeight& weight, TensorView dx_TK,
                             Update update) override {
    if (weight.is_quantized()) {
      TESSERA_CHECK(update == Update::kOverwrite, "dx of a quantised weight is not added up");
      return quantized_backward_input(dy_TN, weight.quantized, dx_TK, scratch_, pool_);
    }
    gemm_backward_input(dy_TN, weight, dx_TK, update, scratch_, pool_);
  }
  void linear_backward_weight(ConstTensorView dy_TN, ConstTensorView x_TK, TensorView dw_NK,
                              WeightUpdate update) override {
    gemm_backward_weight(dy_TN, x_TK, dw_NK, update, scratch_, pool_);
  }
  void linear_backward_bias(ConstTensorView dy_TN, TensorView db_N, Update update) override {
    gemm_backward_bias(dy_TN, db_N, update, pool_);
  }

  void embedding(std::span<const int32_t> ids, ConstTensorView table_VD, TensorView x_TD) override {
    tessera::embedding(ids, table_VD, x_TD, pool_);
  }
  void embedding_backward(std::span<const int32_t> ids, ConstTensorView dx_TD, int32_t padding_id,
                          TensorView dtable_VD) override {
    tessera::embedding_backward(ids, dx_TD, padding_id, dtable_VD, pool_);
  }

  void lora_place(ConstTensorView b_NR, const LoraBlock& block, TensorView e_RN) override {
    tessera::lora_place(b_NR, block, e_RN, pool_);
  }
  void lora_take(ConstTensorView de_RN, const LoraBlock& block, TensorView db_NR, Update update) override {
    tessera::lora_take(de_RN, block, db_NR, update, pool_);
  }
  void dropout(ConstTensorView x_TD, const Dropout& which, TensorView y_TD, Update update) override {
    tessera::dropout(x_TD, which, y_TD, update, pool_);
  }

  void rmsnorm(ConstTensorView x_RD, const NormWeight& w_D, float eps, TensorView y_RD,
               TensorView rstd_R) override {
    tessera::rmsnorm(x_RD, w_D, eps, y_RD, rstd_R, pool_);
  }
  void rmsnorm_backward(ConstTensorView dy_RD, ConstTensorView x_RD, const NormWeight& w_D,
                        ConstTensorView rstd_R, TensorView dx_RD, Update dx_update, TensorView dw_D,
                        Update dw_update) override {
    tessera::rmsnorm_backward(dy_RD, x_RD, w_D, rstd_R, dx_RD, dx_update, dw_D, dw_update, scratch_, pool_);
  }
  void add_rmsnorm(TensorView x_TD, ConstTensorView y_TD, const NormWeight& w_D, float eps,
                   TensorView norm_TD, TensorView rstd_T) override {
    tessera::add_rmsnorm(x_TD, y_TD, w_D, eps, norm_TD, rstd_T, pool_);
  }
  void add(TensorView x, ConstTensorView y) override { tessera::add(x, y, pool_); }
  void round_to(ConstTensorView from, TensorView to) override { tessera::round_to(from, to, pool_); }
  void gather_rows(std::span<const int32_t> rows, TensorView x_TD) override {
    tessera::gather_rows(rows, x_TD);
  }
  void scatter_rows(std::span<const int32_t> rows, TensorView x_TD) override {
    tessera::scatter_rows(rows, x_TD);
  }
  void zero(TensorView x) override { tessera::zero(x, pool_); }
  double sum_of_squares(ConstTensorView x) override {
    const std::span<const float> elements(x.as<float>(), static_cast<size_t>(x.num_elements()));
    return tessera::sum_of_squares(elements, scratch_, pool_);
  }

  void head_rmsnorm(ConstTensorView qkv_TQ, const AttentionShape& shape, int64_t head_begin, int64_t head_end,
                    const NormWeight& w_E, float eps, TensorView y_TQ, TensorView rstd) override {
    tessera::head_rmsnorm(qkv_TQ, shape, head_begin, head_end, w_E, eps, y_TQ, rstd, pool_);
  }
  void head_rmsnorm_backward(TensorView dqkv_TQ, ConstTensorView qkv_TQ, const AttentionShape& shape,
                             int64_t head_begin, int64_t head_end, const NormWeight& w_E,
                             ConstTensorView rstd, TensorView dw_E, Update dw_update) override {
    tessera::head_rmsnorm_backward(dqkv_TQ, qkv_TQ, shape, head_begin, head_end, w_E, rstd, dw_E, dw_update,
                                   scratch_, pool_);
  }

  void rope(TensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> positions,
            const RopeTable& table, bool inverse) override {
    tessera::rope(qkv_TQ, shape, positions, table, inverse, pool_);
  }

  void attention(ConstTensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                 TensorView o_THE, TensorView lse_HT) override {
    tessera::attention(qkv_TQ, shape, cu_seqlens, o_THE, lse_HT, scratch_, pool_);
  }
  void attention_backward(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                          ConstTensorView lse_HT, const AttentionShape& shape,
                          std::span<const int32_t> cu_seqlens, TensorView dqkv_TQ) override {
    tessera::attention_backward(do_THE, qkv_TQ, o_THE, lse_HT, shape, cu_seqlens, dqkv_TQ, scratch_, pool_);
  }
  void attention_cached(ConstTensorView qkv_TQ, const AttentionShape& shape, TensorView k_cache,
                        TensorView v_cache, int64_t cache_length, ConstTensorView sinks_H,
                        TensorView o_THE) override {
    tessera::attention_cached(qkv_TQ, shape, k_cache, v_cache, cache_length, sinks_H, o_THE, scratch_, pool_);
  }

  void general_attention(const AttentionInputs& inputs, const AttentionShape& shape, TensorView o_THE,
                         TensorView lse_HT) override {
    tessera::general_attention(inputs, shape, o_THE, lse_HT, scratch_, pool_);
  }
  void general_attention_backward(ConstTensorView do_THE, const AttentionInputs& inputs,
                                  ConstTensorView o_THE, ConstTensorView lse_HT, const AttentionShape& shape,
                                  const AttentionGradients& gradients) override {
    tessera::general_attention_backward(do_THE, inputs, o_THE, lse_HT, shape, gradients, scratch_, pool_);
  }

  void activation(Activation which, ConstTensorView pre_TP, TensorView h_TF) override {
    tessera::activation(which, pre_TP, h_TF, pool_);
  }
  void activation_backward(Activation which, ConstTensorView dh_TF, ConstTensorView pre_TP,
                           TensorView dpre_TP, TensorView h_TF) override {
    tessera::activation_backward(which, dh_TF, pre_TP, dpre_TP, h_TF, pool_);
  }
  void layernorm(ConstTensorView x_RD, ConstTensorView w_D, ConstTensorView b_D, float eps, TensorView y_RD,
                 TensorView stats_R2) override {
    tessera::layernorm(x_RD, w_D, b_D, eps, y_RD, stats_R2, pool_);
  }
  void layernorm_backward(ConstTensorView dy_RD, ConstTensorView x_RD, ConstTensorView w_D,
                          ConstTensorView stats_R2, TensorView dx_RD, Update dx_update, TensorView dw_D,
                          TensorView db_D, Update dw_update) override {
    tessera::layernorm_backward(dy_RD, x_RD, w_D, stats_R2, dx_RD, dx_update, dw_D, db_D, dw_update, pool_);
  }
  void scale(ConstTensorView x, float factor, TensorView y) override { tessera::scale(x, factor, y, pool_); }
  void soft_cap(TensorView x, float cap) override { tessera::soft_cap(x, cap, pool_); }
  void soft_cap_backward(ConstTensorView y, float cap, TensorView dx) override {
    tessera::soft_cap_backward(y, cap, dx, pool_);
  }

  void route(TensorView p_TE, ExpertWeights form, TensorView w_TK, ExpertRows& rows,
             RouterLoad* load) override {
    tessera::route(p_TE, form, w_TK, rows, load, pool_);
  }
  void route_backward(ConstTensorView p_TE, const ExpertRows& rows, ExpertWeights form, ConstTensorView w_TK,
                      ConstTensorView dw_TK, std::span<const float> balance_E, TensorView dl_TE) override {
    tessera::route_backward(p_TE, rows, form, w_TK, dw_TK, balance_E, dl_TE, pool_);
  }
  void gather_expert_rows(ConstTensorView x_TD, const ExpertRows& rows, TensorView x_RD) override {
    tessera::gather_expert_rows(x_TD, rows, x_RD, pool_);
  }
  void combine_expert_rows(ConstTensorView y_RD, const ExpertRows& rows, ConstTensorView w_TK,
                           TensorView y_TD, Update update) override {
    tessera::combine_expert_rows(y_RD, rows, w_TK, y_TD, update, pool_);
  }
  void weigh_expert_rows(const ExpertRows& rows, ConstTensorView w_TK, TensorView a_RF, TensorView b_RF,
                         TensorView dw_TK) override {
    tessera::weigh_expert_rows(rows, w_TK, a_RF, b_RF, dw_TK, pool_);
  }

  void add_expert_bias(const ExpertRows& rows, ConstTensorView b_EN, TensorView y_RN) override {
    tessera::add_expert_bias(rows, b_EN, y_RN, pool_);
  }
  void expert_bias_backward(const ExpertRows& rows, ConstTensorView g_RN, ConstTensorView w_TK,
                            ConstTensorView b_EN, TensorView dw_TK, TensorView db_EN,
                            Update update) override {
    tessera::expert_bias_backward(rows, g_RN, w_TK, b_EN, dw_TK, db_EN, update, pool_);
  }
  void clamped_swiglu(ConstTensorView pre_TF2, const ClampedSwiglu& clamp, TensorView h_TF) override {
    tessera::clamped_swiglu(pre_TF2, clamp, h_TF, pool_);
  }
  void clamped_swiglu_backward(ConstTensorView dh_TF, ConstTensorView pre_TF2, const ClampedSwiglu& clamp,
                               TensorView dpre_TF2, TensorView h_TF) override {
    tessera::clamped_swiglu_backward(dh_TF, pre_TF2, clamp, dpre_TF2, h_TF, pool_);
  }

  void swiglu(ConstTensorView gate_up_TF2, TensorView h_TF) override {
    tessera::swiglu(gate_up_TF2, h_TF, pool_);
  }
  void swiglu_backward(ConstTensorView dh_TF, ConstTensorView gate_up_TF2, TensorView dgate_up_TF2,
                       TensorView h_TF) override {
    tessera::swiglu_backward(dh_TF, gate_up_TF2, dgate_up_TF2, h_TF, pool_);
  }

  LossSums cross_entropy(ConstTensorView logits_RV, std::span<const int32_t> targets, float label_smoothing,
                         float grad_scale, TensorView dlogits_RV) override {
    return tessera::cross_entropy(logits_RV, targets, label_smoothing, grad_scale, dlogits_RV, scratch_,
                                  pool_);
  }
  void cross_entropy_add_chunk(ConstTensorView logits_RC, int64_t first_column,
                               std::span<const int32_t> targets, float label_smoothing,
                               TensorView rows) override {
    tessera::cross_entropy_add_chunk(logits_RC, first_column, targets, label_smoothing, softmax_rows(rows),
                                     pool_);
  }
  LossSums cross_entropy_loss(ConstTensorView rows, std::span<const int32_t> targets, int64_t vocab_size,
                              float label_smoothing) override {
    return tessera::cross_entropy_loss(softmax_rows(rows), targets, vocab_size, label_smoothing);
  }
  void cross_entropy_chunk_gradient(ConstTensorView logits_RC, int64_t first_column, int64_t vocab_size,
                                    std::span<const int32_t> targets, ConstTensorView rows,
                                    float label_smoothing, float grad_scale, TensorView dlogits_RC) override {
    tessera::cross_entropy_chunk_gradient(logits_RC, first_column, vocab_size, targets, softmax_rows(rows),
                                          label_smoothing, grad_scale, dlogits_RC, pool_);
  }

  void adamw(TensorView weights, TensorView remainders, ConstTensorView gradient, TensorView exp_avg,
             TensorView exp_avg_sq, int64_t first_element, const AdamWScalars& scalars) override {
    TESSERA_CHECK(exp_avg.dtype() == DType::kF32 || exp_avg.dtype() == DType::kBF16, "{} moments",
                  dtype_name(exp_avg.dtype()));
    std::byte* const moments[] = {exp_avg.bytes(), exp_avg_sq.bytes()};
    const OptimizerBlock block = {
        .weights = weights,
        .remainders = weights.dtype() == DType::kBF16 ? remainders.as<int16_t>() : nullptr,
        .gradient = {gradient.as<float>(), static_cast<size_t>(weights.num_elements())},
        .state = moments,
        .first_element = first_element};
    update_elements<AdamWRule>(block, exp_avg.dtype() == DType::kF32 ? MomentForm::kF32 : MomentForm::kBF16,
                               scalars, pool_);
  }

 private:
  ThreadPool& pool_;
  std::span<std::byte> scratch_;
};

}  // namespace

// Tile registers must be permitted before oneDNN inspects the machine. The dispatch tables request the
// permission, so they are resolved here, where a bad TESSERA_ISA then fails too.
std::unique_ptr<Ops> make_cpu_ops(ThreadPool& pool) {
  kernel_reports();
  return std::make_unique<CpuOps>(pool);
}

}  // namespace tessera
