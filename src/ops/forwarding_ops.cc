#include "ops/forwarding_ops.h"

#include <initializer_list>

namespace tessera {

template <typename Run>
void ForwardingOps::forward(const char* name, std::initializer_list<ConstTensorView*> inputs,
                            std::initializer_list<TensorView*> outputs, const Run& run,
                            const OpCall::Details& details) {
  around({name, {inputs.begin(), inputs.size()}, {outputs.begin(), outputs.size()}, details}, run);
}

void ForwardingOps::pack_linear_weight(ConstTensorView w, const PackedForms& to, RowRange rows) {
  forward("pack_linear_weight", {&w}, {}, [&] { ops_->pack_linear_weight(w, to, rows); });
}

void ForwardingOps::linear(ConstTensorView x, const LinearWeight& weight, ConstTensorView bias,
                           TensorView y) {
  LinearWeight w = weight;
  forward("linear", {&x, &w.w_NK, &bias}, {&y}, [&] { ops_->linear(x, w, bias, y); },
          {.packed = w.packed.forward != nullptr, .quantization = w.quantized.kind});
}

void ForwardingOps::linear_backward_input(ConstTensorView dy, const LinearWeight& weight, TensorView dx,
                                          Update update) {
  LinearWeight w = weight;
  forward("linear_backward_input", {&dy, &w.w_NK}, {&dx},
          [&] { ops_->linear_backward_input(dy, w, dx, update); },
          {.update = update, .packed = w.packed.backward_input != nullptr, .quantization = w.quantized.kind});
}

void ForwardingOps::linear_backward_weight(ConstTensorView dy, ConstTensorView x, TensorView dw,
                                           WeightUpdate update) {
  forward("linear_backward_weight", {&dy, &x}, {&dw},
          [&] { ops_->linear_backward_weight(dy, x, dw, update); },
          {.update = update.mode, .squares = update.squares != nullptr});
}

void ForwardingOps::linear_backward_bias(ConstTensorView dy, TensorView db, Update update) {
  forward("linear_backward_bias", {&dy}, {&db}, [&] { ops_->linear_backward_bias(dy, db, update); },
          {.update = update});
}

void ForwardingOps::embedding(std::span<const int32_t> ids, ConstTensorView table, TensorView x) {
  forward("embedding", {&table}, {&x}, [&] { ops_->embedding(ids, table, x); });
}

void ForwardingOps::embedding_backward(std::span<const int32_t> ids, ConstTensorView dx, int32_t padding_id,
                                       TensorView dtable) {
  forward("embedding_backward", {&dx}, {&dtable},
          [&] { ops_->embedding_backward(ids, dx, padding_id, dtable); });
}

void ForwardingOps::lora_place(ConstTensorView b, const LoraBlock& block, TensorView e) {
  forward("lora_place", {&b}, {&e}, [&] { ops_->lora_place(b, block, e); });
}

void ForwardingOps::lora_take(ConstTensorView de, const LoraBlock& block, TensorView db, Update update) {
  forward("lora_take", {&de}, {&db}, [&] { ops_->lora_take(de, block, db, update); }, {.update = update});
}

void ForwardingOps::dropout(ConstTensorView x, const Dropout& which, TensorView y, Update update) {
  forward("dropout", {&x}, {&y}, [&] { ops_->dropout(x, which, y, update); }, {.update = update});
}

void ForwardingOps::rmsnorm(ConstTensorView x, const NormWeight& weight, float eps, TensorView y,
                            TensorView rstd) {
  NormWeight w = weight;
  forward("rmsnorm", {&x, &w.view}, {&y, &rstd}, [&] { ops_->rmsnorm(x, w, eps, y, rstd); });
}

void ForwardingOps::rmsnorm_backward(ConstTensorView dy, ConstTensorView x, const NormWeight& weight,
                                     ConstTensorView rstd, TensorView dx, Update dx_update, TensorView dw,
                                     Update dw_update) {
  NormWeight w = weight;
  forward("rmsnorm_backward", {&dy, &x, &w.view, &rstd}, {&dx, &dw},
          [&] { ops_->rmsnorm_backward(dy, x, w, rstd, dx, dx_update, dw, dw_update); },
          {.update = dx_update});
}

void ForwardingOps::add_rmsnorm(TensorView x, ConstTensorView y, const NormWeight& weight, float eps,
                                TensorView norm, TensorView rstd) {
  NormWeight w = weight;
  forward("add_rmsnorm", {&y, &w.view}, {&x, &norm, &rstd},
          [&] { ops_->add_rmsnorm(x, y, w, eps, norm, rstd); });
}

void ForwardingOps::add(TensorView x, ConstTensorView y) {
  forward("add", {&y}, {&x}, [&] { ops_->add(x, y); });
}

void ForwardingOps::round_to(ConstTensorView from, TensorView to) {
  forward("round_to", {&from}, {&to}, [&] { ops_->round_to(from, to); });
}

void ForwardingOps::gather_rows(std::span<const int32_t> rows, TensorView x) {
  forward("gather_rows", {}, {&x}, [&] { ops_->gather_rows(rows, x); });
}

void ForwardingOps::scatter_rows(std::span<const int32_t> rows, TensorView x) {
  forward("scatter_rows", {}, {&x}, [&] { ops_->scatter_rows(rows, x); });
}

void ForwardingOps::zero(TensorView x) {
  forward("zero", {}, {&x}, [&] { ops_->zero(x); });
}

double ForwardingOps::sum_of_squares(ConstTensorView x) {
  double sum = 0;
  forward("sum_of_squares", {&x}, {}, [&] { sum = ops_->sum_of_squares(x); });
  return sum;
}

void ForwardingOps::head_rmsnorm(ConstTensorView qkv, const AttentionShape& shape, int64_t begin, int64_t end,
                                 const NormWeight& weight, float eps, TensorView y, TensorView rstd) {
  NormWeight w = weight;
  forward("head_rmsnorm", {&qkv, &w.view}, {&y, &rstd},
          [&] { ops_->head_rmsnorm(qkv, shape, begin, end, w, eps, y, rstd); });
}

void ForwardingOps::head_rmsnorm_backward(TensorView dqkv, ConstTensorView qkv, const AttentionShape& shape,
                                          int64_t begin, int64_t end, const NormWeight& weight,
                                          ConstTensorView rstd, TensorView dw, Update dw_update) {
  NormWeight w = weight;
  forward("head_rmsnorm_backward", {&qkv, &w.view, &rstd}, {&dqkv, &dw},
          [&] { ops_->head_rmsnorm_backward(dqkv, qkv, shape, begin, end, w, rstd, dw, dw_update); });
}

void ForwardingOps::rope(TensorView qkv, const AttentionShape& shape, std::span<const int32_t> positions,
                         const RopeTable& table, bool inverse) {
  RopeTable angles = table;
  forward("rope", {&angles.cos, &angles.sin, &angles.query_scale}, {&qkv},
          [&] { ops_->rope(qkv, shape, positions, angles, inverse); });
}

void ForwardingOps::attention(ConstTensorView qkv, const AttentionShape& shape,
                              std::span<const int32_t> cu_seqlens, TensorView o, TensorView lse) {
  forward("attention", {&qkv}, {&o, &lse}, [&] { ops_->attention(qkv, shape, cu_seqlens, o, lse); },
          {.attention = &shape, .cu_seqlens = cu_seqlens});
}

void ForwardingOps::attention_backward(ConstTensorView d_o, ConstTensorView qkv, ConstTensorView o,
                                       ConstTensorView lse, const AttentionShape& shape,
                                       std::span<const int32_t> cu_seqlens, TensorView dqkv) {
  forward("attention_backward", {&d_o, &qkv, &o, &lse}, {&dqkv},
          [&] { ops_->attention_backward(d_o, qkv, o, lse, shape, cu_seqlens, dqkv); },
          {.attention = &shape, .cu_seqlens = cu_seqlens});
}

void ForwardingOps::attention_cached(ConstTensorView qkv, const AttentionShape& shape, TensorView k_cache,
                                     TensorView v_cache, int64_t cache_length, ConstTensorView sinks,
                                     TensorView o) {
  forward("attention_cached", {&qkv, &sinks}, {&k_cache, &v_cache, &o},
          [&] { ops_->attention_cached(qkv, shape, k_cache, v_cache, cache_length, sinks, o); });
}

void ForwardingOps::general_attention(const AttentionInputs& inputs, const AttentionShape& shape,
                                      TensorView o, TensorView lse) {
  AttentionInputs own = inputs;
  forward("attention", {&own.q_rows, &own.kv_rows, &own.sinks_H}, {&o, &lse},
          [&] { ops_->general_attention(own, shape, o, lse); }, {.attention = &shape, .general = &own});
}

void ForwardingOps::general_attention_backward(ConstTensorView d_o, const AttentionInputs& inputs,
                                               ConstTensorView o, ConstTensorView lse,
                                               const AttentionShape& shape,
                                               const AttentionGradients& gradients) {
  AttentionInputs own = inputs;
  AttentionGradients to = gradients;
  forward("attention_backward", {&d_o, &own.q_rows, &own.kv_rows, &own.sinks_H, &o, &lse},
          {&to.dq_rows, &to.dkv_rows, &to.dtable_BH, &to.dsinks_H},
          [&] { ops_->general_attention_backward(d_o, own, o, lse, shape, to); },
          {.attention = &shape, .general = &own});
}

void ForwardingOps::activation(Activation which, ConstTensorView pre, TensorView h) {
  forward("activation", {&pre}, {&h}, [&] { ops_->activation(which, pre, h); });
}

void ForwardingOps::activation_backward(Activation which, ConstTensorView dh, ConstTensorView pre,
                                        TensorView dpre, TensorView h) {
  forward("activation_backward", {&dh, &pre}, {&dpre, &h},
          [&] { ops_->activation_backward(which, dh, pre, dpre, h); });
}

void ForwardingOps::layernorm(ConstTensorView x, ConstTensorView w, ConstTensorView b, float eps,
                              TensorView y, TensorView stats) {
  forward("layernorm", {&x, &w, &b}, {&y, &stats}, [&] { ops_->layernorm(x, w, b, eps, y, stats); });
}

void ForwardingOps::layernorm_backward(ConstTensorView dy, ConstTensorView x, ConstTensorView w,
                                       ConstTensorView stats, TensorView dx, Update dx_update, TensorView dw,
                                       TensorView db, Update dw_update) {
  forward("layernorm_backward", {&dy, &x, &w, &stats}, {&dx, &dw, &db},
          [&] { ops_->layernorm_backward(dy, x, w, stats, dx, dx_update, dw, db, dw_update); },
          {.update = dx_update});
}

void ForwardingOps::scale(ConstTensorView x, float factor, TensorView y) {
  forward("scale", {&x}, {&y}, [&] { ops_->scale(x, factor, y); });
}

void ForwardingOps::soft_cap(TensorView x, float cap) {
  forward("soft_cap", {}, {&x}, [&] { ops_->soft_cap(x, cap); });
}

void ForwardingOps::soft_cap_backward(ConstTensorView y, float cap, TensorView dx) {
  forward("soft_cap_backward", {&y}, {&dx}, [&] { ops_->soft_cap_backward(y, cap, dx); });
}

void ForwardingOps::route(TensorView p, ExpertWeights form, TensorView w, ExpertRows& rows,
                          RouterLoad* load) {
  bool is_done = false;
  forward("route", {}, {&p, &w}, [&] {
    ops_->route(p, form, w, rows, load);
    is_done = true;
  });
  if (!is_done) rows.spread_evenly();
}

void ForwardingOps::route_backward(ConstTensorView p, const ExpertRows& rows, ExpertWeights form,
                                   ConstTensorView w, ConstTensorView dw, std::span<const float> balance,
                                   TensorView dl) {
  forward("route_backward", {&p, &w, &dw}, {&dl},
          [&] { ops_->route_backward(p, rows, form, w, dw, balance, dl); });
}

void ForwardingOps::gather_expert_rows(ConstTensorView x, const ExpertRows& rows, TensorView x_rows) {
  forward("gather_expert_rows", {&x}, {&x_rows}, [&] { ops_->gather_expert_rows(x, rows, x_rows); });
}

void ForwardingOps::combine_expert_rows(ConstTensorView y_rows, const ExpertRows& rows, ConstTensorView w,
                                        TensorView y, Update update) {
  forward("combine_expert_rows", {&y_rows, &w}, {&y},
          [&] { ops_->combine_expert_rows(y_rows, rows, w, y, update); }, {.update = update});
}

void ForwardingOps::weigh_expert_rows(const ExpertRows& rows, ConstTensorView w, TensorView a, TensorView b,
                                      TensorView dw) {
  forward("weigh_expert_rows", {&w}, {&a, &b, &dw}, [&] { ops_->weigh_expert_rows(rows, w, a, b, dw); });
}

void ForwardingOps::add_expert_bias(const ExpertRows& rows, ConstTensorView b, TensorView y) {
  forward("add_expert_bias", {&b}, {&y}, [&] { ops_->add_expert_bias(rows, b, y); });
}

void ForwardingOps::expert_bias_backward(const ExpertRows& rows, ConstTensorView g, ConstTensorView w,
                                         ConstTensorView b, TensorView dw, TensorView db, Update update) {
  forward("expert_bias_backward", {&g, &w, &b}, {&dw, &db},
          [&] { ops_->expert_bias_backward(rows, g, w, b, dw, db, update); }, {.update = update});
}

void ForwardingOps::clamped_swiglu(ConstTensorView pre, const ClampedSwiglu& clamp, TensorView h) {
  forward("clamped_swiglu", {&pre}, {&h}, [&] { ops_->clamped_swiglu(pre, clamp, h); });
}

void ForwardingOps::clamped_swiglu_backward(ConstTensorView dh, ConstTensorView pre,
                                            const ClampedSwiglu& clamp, TensorView dpre, TensorView h) {
  forward("clamped_swiglu_backward", {&dh, &pre}, {&dpre, &h},
          [&] { ops_->clamped_swiglu_backward(dh, pre, clamp, dpre, h); });
}

void ForwardingOps::swiglu(ConstTensorView gate_up, TensorView h) {
  forward("swiglu", {&gate_up}, {&h}, [&] { ops_->swiglu(gate_up, h); });
}

void ForwardingOps::swiglu_backward(ConstTensorView dh, ConstTensorView gate_up, TensorView dgate_up,
                                    TensorView h) {
  forward("swiglu_backward", {&dh, &gate_up}, {&dgate_up, &h},
          [&] { ops_->swiglu_backward(dh, gate_up, dgate_up, h); });
}

LossSums ForwardingOps::cross_entropy(ConstTensorView logits, std::span<const int32_t> targets,
                                      float label_smoothing, float grad_scale, TensorView dlogits) {
  LossSums sums;
  forward("cross_entropy", {&logits}, {&dlogits},
          [&] { sums = ops_->cross_entropy(logits, targets, label_smoothing, grad_scale, dlogits); });
  return sums;
}

void ForwardingOps::cross_entropy_add_chunk(ConstTensorView logits, int64_t first_column,
                                            std::span<const int32_t> targets, float label_smoothing,
                                            TensorView rows) {
  forward("cross_entropy_add_chunk", {&logits}, {&rows},
          [&] { ops_->cross_entropy_add_chunk(logits, first_column, targets, label_smoothing, rows); });
}

LossSums ForwardingOps::cross_entropy_loss(ConstTensorView rows, std::span<const int32_t> targets,
                                           int64_t vocab_size, float label_smoothing) {
  LossSums sums;
  forward("cross_entropy_loss", {&rows}, {},
          [&] { sums = ops_->cross_entropy_loss(rows, targets, vocab_size, label_smoothing); });
  return sums;
}

void ForwardingOps::cross_entropy_chunk_gradient(ConstTensorView logits, int64_t first_column,
                                                 int64_t vocab_size, std::span<const int32_t> targets,
                                                 ConstTensorView rows, float label_smoothing,
                                                 float grad_scale, TensorView dlogits) {
  forward("cross_entropy_chunk_gradient", {&logits, &rows}, {&dlogits}, [&] {
    ops_->cross_entropy_chunk_gradient(logits, first_column, vocab_size, targets, rows, label_smoothing,
                                       grad_scale, dlogits);
  });
}

void ForwardingOps::adamw(TensorView weights, TensorView remainders, ConstTensorView gradient,
                          TensorView exp_avg, TensorView exp_avg_sq, int64_t first_element,
                          const AdamWScalars& scalars) {
  forward("adamw", {&gradient}, {&weights, &remainders, &exp_avg, &exp_avg_sq},
          [&] { ops_->adamw(weights, remainders, gradient, exp_avg, exp_avg_sq, first_element, scalars); });
}

}  // namespace tessera
