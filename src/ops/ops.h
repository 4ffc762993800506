// The operations a model needs, and the update of its weights, as one interface. CpuOps forwards
// to kernels/; another device is another implementation, chosen once at start-up (devices/make_ops.h).
//
// Shape letters: T tokens, D hidden, H query heads, G key-value heads, E head size, F feed-forward, V
// vocabulary, Q = (H + 2G) E the width of a fused query/key/value row, N and K sizes of a product. R rows of
// anything.
//
// Rules for every operation:
// * Activations, weights and activation gradients have one dtype, BF16 or F32 ("A" below), the same in one
//   call. Statistics (rstd, lse), logits, losses and weight gradients are F32. Accumulation is in float32.
// * Weight gradients are added to (+=) or overwritten (=), according to a parameter. Activation gradients are
//   overwritten unless a parameter says otherwise.
// * Outputs do not overlap inputs unless marked "in place" or "may alias".
// * Results do not depend on the number of threads and are identical in every run.
// * Calls do not allocate memory; temporary memory comes from bind_workspace().
// * Tensors, packed forms and the workspace are memory of device(). Spans of ids, positions, row numbers,
//   sequence starts and targets are the host's, may be reused after the call, and are for the implementation
//   to upload. Calls are carried out in order; one that returns or adds up a number returns with it.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kernels/attention/attention_inputs.h"
#include "kernels/attention/attention_shape.h"
#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/dropout/dropout.h"
#include "kernels/embedding/embedding.h"
#include "kernels/gemm/linear_weight.h"
#include "kernels/lora/lora.h"
#include "kernels/moe/expert_rows.h"
#include "kernels/optimizer/adamw.h"
#include "kernels/rmsnorm/norm_weight.h"
#include "kernels/rope/rope.h"
#include "kernels/update.h"
#include "tensor/activation.h"
#include "tensor/device.h"
#include "tensor/tensor_view.h"

namespace tessera {

// linear() and its backward for one weight, with at most max_rows tokens.
struct LinearLimits {
  int64_t max_rows;
  LinearShape weight;
  Quantization quantization = Quantization::kNone;
  bool transposed = false;  // linear_backward_input() is called without training, too
};

// The largest shapes that will be used: bounds the workspace.
struct OpsLimits {
  int64_t max_tokens;           // T
  int64_t max_sequence_length;  // longest cu_seqlens entry
  int64_t hidden_size;          // D
  int64_t max_logits_rows;      // rows per cross_entropy call
  int64_t max_sum_elements;     // per sum_of_squares() call
  AttentionShape attention;
  int64_t head_norm_width = 0;     // of the widest weight of head_rmsnorm_backward(); 0: head_dim
  bool general_attention = false;  // is called, with this many buckets of a position bias
  int64_t position_buckets = 0;
  DType dtype;
  bool training;  // backward will be called
  std::vector<LinearLimits> linears;
};

class Ops {
 public:
  virtual ~Ops() = default;

  // Where the operands are.
  virtual Device& device() const = 0;

  // The implementations in use, for the log: "cpu: gemm onednn (amx_bf16), attention hwy (avx3_dl), ...".
  virtual std::string description() const = 0;

  // Temporary memory for all calls within `limits`; the block is kept until the next bind.
  virtual int64_t workspace_bytes(const OpsLimits& limits) const = 0;
  virtual void bind_workspace(std::span<std::byte> workspace) = 0;

  // Bytes of each packed form of a weight [N, K]; 0: packed forms are of no use here.
  virtual int64_t packed_weight_bytes(int64_t N, int64_t K, DType dtype) const = 0;
  // Packs these rows, cut at multiples of kPackedRows, into the forms that are not null.
  virtual void pack_linear_weight(ConstTensorView w_NK, const PackedForms& to, RowRange rows) = 0;

  // y_TN = x_TK w_NK^T + bias_N (bias may be empty). y may be A or F32.
  virtual void linear(ConstTensorView x_TK, const LinearWeight& weight, ConstTensorView bias_N,
                      TensorView y_TN) = 0;
  // dx_TK = dy_TN w_NK, or += (not with a quantized weight). dx may be A or F32.
  virtual void linear_backward_input(ConstTensorView dy_TN, const LinearWeight& weight, TensorView dx_TK,
                                     Update update) = 0;
  // dw_NK = or += dy_TN^T x_TK (F32).
  virtual void linear_backward_weight(ConstTensorView dy_TN, ConstTensorView x_TK, TensorView dw_NK,
                                      WeightUpdate update) = 0;
  // db_N = or += sum over rows of dy_TN (F32).
  virtual void linear_backward_bias(ConstTensorView dy_TN, TensorView db_N, Update update) = 0;

  // x_TD[t] = table_VD[ids[t]]. Ids are checked by the caller.
  virtual void embedding(std::span<const int32_t> ids, ConstTensorView table_VD, TensorView x_TD) = 0;
  // dtable_VD[ids[t]] += dx_TD[t] (F32), in the order of t for every row of the table; the row of padding_id
  // receives nothing (torch.nn.Embedding's padding_idx; kNoPaddingId = none).
  virtual void embedding_backward(std::span<const int32_t> ids, ConstTensorView dx_TD, int32_t padding_id,
                                  TensorView dtable_VD) = 0;

  // A module's block of the matrix E of all adapters of a product, and its gradient (kernels/lora/lora.h):
  // e_RN = scale * b_NR^T there; db_NR = or += scale * de_RN^T from there (F32).
  virtual void lora_place(ConstTensorView b_NR, const LoraBlock& block, TensorView e_RN) = 0;
  virtual void lora_take(ConstTensorView de_RN, const LoraBlock& block, TensorView db_NR, Update update) = 0;
  // y_TD = or += x_TD / (1 - probability) where `which` keeps the element, otherwise 0. y may be x.
  virtual void dropout(ConstTensorView x_TD, const Dropout& which, TensorView y_TD, Update update) = 0;

  // rstd_R = 1 / sqrt(mean(x^2) + eps) (F32), y_RD = x rstd w. Zhang and Sennrich, 2019.
  virtual void rmsnorm(ConstTensorView x_RD, const NormWeight& w_D, float eps, TensorView y_RD,
                       TensorView rstd_R) = 0;
  // dx_RD = or += gradient through the norm; dw_D = or += sum over rows of dy x rstd
  // (F32); empty: not wanted.
  virtual void rmsnorm_backward(ConstTensorView dy_RD, ConstTensorView x_RD, const NormWeight& w_D,
                                ConstTensorView rstd_R, TensorView dx_RD, Update dx_update, TensorView dw_D,
                                Update dw_update) = 0;

  // sum_TD = x_TD + y_TD in place of x, rounded to A, then rmsnorm of the sum: the residual stream in one
  // pass.
  virtual void add_rmsnorm(TensorView x_TD, ConstTensorView y_TD, const NormWeight& w_D, float eps,
                           TensorView norm_TD, TensorView rstd_T) = 0;
  // x += y.
  virtual void add(TensorView x, ConstTensorView y) = 0;
  // to = from (F32) rounded to A.
  virtual void round_to(ConstTensorView from, TensorView to) = 0;
  // x_i = x_rows[i] in place; `rows` ascend. Rows after the last of these keep what they had.
  virtual void gather_rows(std::span<const int32_t> rows, TensorView x_TD) = 0;
  // The reverse: x_rows[i] = x_i in place; all other rows become zero.
  virtual void scatter_rows(std::span<const int32_t> rows, TensorView x_TD) = 0;
  // x = 0, any dtype.
  virtual void zero(TensorView x) = 0;
  // Sum of x^2 (F32) in double, for a gradient whose sum of squares no product computes.
  virtual double sum_of_squares(ConstTensorView x) = 0;

  // RMSNorm over E of heads [head_begin, head_end) of fused rows, or with a weight as wide as all of them one
  // norm over these, other heads copied when y is another buffer (y may be x). rstd is F32 [T, norms].
  // Qwen3's and OLMo 2's q_norm and k_norm.
  virtual void head_rmsnorm(ConstTensorView qkv_TQ, const AttentionShape& shape, int64_t head_begin,
                            int64_t head_end, const NormWeight& w_E, float eps, TensorView y_TQ,
                            TensorView rstd) = 0;
  // In place on dqkv_TQ heads [head_begin, head_end); qkv_TQ is the input of the forward call. dw_E = or += ;
  // empty: not wanted.
  virtual void head_rmsnorm_backward(TensorView dqkv_TQ, ConstTensorView qkv_TQ, const AttentionShape& shape,
                                     int64_t head_begin, int64_t head_end, const NormWeight& w_E,
                                     ConstTensorView rstd, TensorView dw_E, Update dw_update) = 0;

  // Rotates the H query and G key heads of every row in place, as its table says (kernels/rope/rope.h);
  // `inverse` applies the transpose, which is the backward. Su et al., 2021.
  virtual void rope(TensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> positions,
                    const RopeTable& table, bool inverse) = 0;

  // Causal softmax attention inside each sequence of cu_seqlens. o_THE [T, H E]; lse_HT F32 is the log of the
  // sum of exponentials of each row of scores. Never holds more than blocks of scores. Dao, FlashAttention-2,
  // 2023.
  virtual void attention(ConstTensorView qkv_TQ, const AttentionShape& shape,
                         std::span<const int32_t> cu_seqlens, TensorView o_THE, TensorView lse_HT) = 0;
  // dqkv_TQ = gradient of all three parts.
  virtual void attention_backward(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                                  ConstTensorView lse_HT, const AttentionShape& shape,
                                  std::span<const int32_t> cu_seqlens, TensorView dqkv_TQ) = 0;
  // Generation, one sequence: copies the k and v of T new tokens to rows [cache_length, cache_length + T) of
  // the caches [capacity, G E], then lets each new token attend to the cache up to itself.
  // sinks_H (AttentionInputs) may be empty; not on other devices.
  virtual void attention_cached(ConstTensorView qkv_TQ, const AttentionShape& shape, TensorView k_cache,
                                TensorView v_cache, int64_t cache_length, ConstTensorView sinks_H,
                                TensorView o_THE) = 0;

  // Attention of the queries of one sequence to the keys of another, in both directions, with a bias by
  // position or with sinks (kernels/attention/attention_inputs.h); general_attention_backward() overwrites or
  // adds to what `gradients` says. On the host alone.
  virtual void general_attention(const AttentionInputs& inputs, const AttentionShape& shape, TensorView o_THE,
                                 TensorView lse_HT);
  virtual void general_attention_backward(ConstTensorView do_THE, const AttentionInputs& inputs,
                                          ConstTensorView o_THE, ConstTensorView lse_HT,
                                          const AttentionShape& shape, const AttentionGradients& gradients);

  // h_TF = silu(gate) * up with rows [gate: F | up: F] of gate_up_TF2. Shazeer, 2020.
  virtual void swiglu(ConstTensorView gate_up_TF2, TensorView h_TF) = 0;
  // Also recomputes h_TF. dgate_up may be gate_up, h may be dh.
  virtual void swiglu_backward(ConstTensorView dh_TF, ConstTensorView gate_up_TF2, TensorView dgate_up_TF2,
                               TensorView h_TF) = 0;

  // The functions of other feed-forward blocks (kernels/activation/activation.h), rows of pre_TP twice as
  // wide as those of h_TF if they are gated. dpre may be pre, h may be dh. On the host alone.
  virtual void activation(Activation which, ConstTensorView pre_TP, TensorView h_TF);
  virtual void activation_backward(Activation which, ConstTensorView dh_TF, ConstTensorView pre_TP,
                                   TensorView dpre_TP, TensorView h_TF);
  // y_RD = w (x - mean) rstd + b; stats_R2 F32 has mean and rstd of every row; b may be empty
  // (kernels/layernorm/layernorm.h). On the host alone.
  virtual void layernorm(ConstTensorView x_RD, ConstTensorView w_D, ConstTensorView b_D, float eps,
                         TensorView y_RD, TensorView stats_R2);
  // dx_RD = or += gradient through the norm; dw_D, db_D = or += (F32); empty: not wanted.
  virtual void layernorm_backward(ConstTensorView dy_RD, ConstTensorView x_RD, ConstTensorView w_D,
                                  ConstTensorView stats_R2, TensorView dx_RD, Update dx_update,
                                  TensorView dw_D, TensorView db_D, Update dw_update);
  // y = factor x; y may be x. On the host alone.
  virtual void scale(ConstTensorView x, float factor, TensorView y);
  // x = c tanh(x / c), and with y (F32) its result dx *= 1 - (y / c)^2. On the host alone.
  virtual void soft_cap(TensorView x, float cap);
  virtual void soft_cap_backward(ConstTensorView y, float cap, TensorView dx);

  // A mixture of experts around its products (kernels/moe/moe.h). On the host alone. route() turns logits
  // into probabilities, in place, and fills `rows`, which has its sizes; `load` may be null.
  virtual void route(TensorView p_TE, ExpertWeights form, TensorView w_TK, ExpertRows& rows,
                     RouterLoad* load);
  virtual void route_backward(ConstTensorView p_TE, const ExpertRows& rows, ExpertWeights form,
                              ConstTensorView w_TK, ConstTensorView dw_TK, std::span<const float> balance_E,
                              TensorView dl_TE);
  virtual void gather_expert_rows(ConstTensorView x_TD, const ExpertRows& rows, TensorView x_RD);
  virtual void combine_expert_rows(ConstTensorView y_RD, const ExpertRows& rows, ConstTensorView w_TK,
                                   TensorView y_TD, Update update);
  virtual void weigh_expert_rows(const ExpertRows& rows, ConstTensorView w_TK, TensorView a_RF,
                                 TensorView b_RF, TensorView dw_TK);

  // Biases of experts: y_RN += b_EN, and their gradient and part of dw_TK; w_TK, dw_TK and db_EN may be
  // empty.
  virtual void add_expert_bias(const ExpertRows& rows, ConstTensorView b_EN, TensorView y_RN);
  virtual void expert_bias_backward(const ExpertRows& rows, ConstTensorView g_RN, ConstTensorView w_TK,
                                    ConstTensorView b_EN, TensorView dw_TK, TensorView db_EN, Update update);
  // The activation of GPT-OSS's experts (kernels/clamped_swiglu/clamped_swiglu.h). dpre may be pre, h may be
  // dh. On the host alone.
  virtual void clamped_swiglu(ConstTensorView pre_TF2, const ClampedSwiglu& clamp, TensorView h_TF);
  virtual void clamped_swiglu_backward(ConstTensorView dh_TF, ConstTensorView pre_TF2,
                                       const ClampedSwiglu& clamp, TensorView dpre_TF2, TensorView h_TF);

  // Token losses -log softmax(logits)[target] of the rows whose target is not ignored; with smoothing s
  // (1 - s) nll + s mean over V of -log softmax. logits_RV is F32.
  // dlogits_RV (A, may be empty = loss only; may alias logits when F32) = grad_scale * gradient, 0 in ignored
  // rows.
  virtual LossSums cross_entropy(ConstTensorView logits_RV, std::span<const int32_t> targets,
                                 float label_smoothing, float grad_scale, TensorView dlogits_RV) = 0;
  // Cross-entropy for rows available only one chunk of the vocabulary at a time: add every chunk in ascending
  // order, take the loss, then request each chunk's gradient with the same logits again. logits_RC (F32) are
  // columns [first_column, first_column + C); `rows` is U8 [R, kSoftmaxRowBytes], which the chunk at column 0
  // resets.
  virtual void cross_entropy_add_chunk(ConstTensorView logits_RC, int64_t first_column,
                                       std::span<const int32_t> targets, float label_smoothing,
                                       TensorView rows) = 0;
  virtual LossSums cross_entropy_loss(ConstTensorView rows, std::span<const int32_t> targets,
                                      int64_t vocab_size, float label_smoothing) = 0;
  virtual void cross_entropy_chunk_gradient(ConstTensorView logits_RC, int64_t first_column,
                                            int64_t vocab_size, std::span<const int32_t> targets,
                                            ConstTensorView rows, float label_smoothing, float grad_scale,
                                            TensorView dlogits_RC) = 0;

  // One update of consecutive elements (kernels/optimizer/element_update.h): weights A, with BF16 ones the
  // remainders of their masters (I16); gradient F32, moments F32 or BF16. first_element: the first one's
  // place among all parameters.
  virtual void adamw(TensorView weights, TensorView remainders, ConstTensorView gradient, TensorView exp_avg,
                     TensorView exp_avg_sq, int64_t first_element, const AdamWScalars& scalars) = 0;
};

}  // namespace tessera
