#include "bench/step/timed_ops.h"

#include "bench/measure.h"

namespace tessera {

template <typename Call>
void TimedOps::timed(const char* name, const Call& call) {
  seconds_[name] += seconds_of(call);
}

void TimedOps::pack_linear_weight(ConstTensorView w, const PackedForms& to, RowRange rows) {
  timed("pack_linear_weight", [&] { ops_->pack_linear_weight(w, to, rows); });
}

void TimedOps::linear(ConstTensorView x, const LinearWeight& w, ConstTensorView bias, TensorView y) {
  timed("linear", [&] { ops_->linear(x, w, bias, y); });
}

void TimedOps::linear_backward_input(ConstTensorView dy, const LinearWeight& w, TensorView dx,
                                     Update update) {
  timed("linear_backward_input", [&] { ops_->linear_backward_input(dy, w, dx, update); });
}

void TimedOps::linear_backward_weight(ConstTensorView dy, ConstTensorView x, TensorView dw,
                                      WeightUpdate update) {
  timed("linear_backward_weight", [&] { ops_->linear_backward_weight(dy, x, dw, update); });
}

void TimedOps::linear_backward_bias(ConstTensorView dy, TensorView db, Update update) {
  timed("linear_backward_bias", [&] { ops_->linear_backward_bias(dy, db, update); });
}

void TimedOps::embedding(std::span<const int32_t> ids, ConstTensorView table, TensorView x) {
  timed("embedding", [&] { ops_->embedding(ids, table, x); });
}

void TimedOps::embedding_backward(std::span<const int32_t> ids, ConstTensorView dx, int32_t padding_id,
                                  TensorView dtable) {
  timed("embedding_backward", [&] { ops_->embedding_backward(ids, dx, padding_id, dtable); });
}

void TimedOps::rmsnorm(ConstTensorView x, ConstTensorView w, float eps, TensorView y, TensorView rstd) {
  timed("rmsnorm", [&] { ops_->rmsnorm(x, w, eps, y, rstd); });
}

void TimedOps::rmsnorm_backward(ConstTensorView dy, ConstTensorView x, ConstTensorView w,
                                ConstTensorView rstd, TensorView dx, Update dx_update, TensorView dw,
                                Update dw_update) {
  timed("rmsnorm_backward", [&] { ops_->rmsnorm_backward(dy, x, w, rstd, dx, dx_update, dw, dw_update); });
}

void TimedOps::add_rmsnorm(TensorView x, ConstTensorView y, ConstTensorView w, float eps, TensorView norm,
                           TensorView rstd) {
  timed("add_rmsnorm", [&] { ops_->add_rmsnorm(x, y, w, eps, norm, rstd); });
}

void TimedOps::add(TensorView x, ConstTensorView y) {
  timed("add", [&] { ops_->add(x, y); });
}

void TimedOps::round_to(ConstTensorView from, TensorView to) {
  timed("round_to", [&] { ops_->round_to(from, to); });
}

void TimedOps::zero(TensorView x) {
  timed("zero", [&] { ops_->zero(x); });
}

double TimedOps::sum_of_squares(ConstTensorView x) {
  double sum = 0;
  timed("sum_of_squares", [&] { sum = ops_->sum_of_squares(x); });
  return sum;
}

void TimedOps::head_rmsnorm(ConstTensorView qkv, const AttentionShape& shape, int64_t begin, int64_t end,
                            ConstTensorView w, float eps, TensorView y, TensorView rstd) {
  timed("head_rmsnorm", [&] { ops_->head_rmsnorm(qkv, shape, begin, end, w, eps, y, rstd); });
}

void TimedOps::head_rmsnorm_backward(TensorView dqkv, ConstTensorView qkv, const AttentionShape& shape,
                                     int64_t begin, int64_t end, ConstTensorView w, ConstTensorView rstd,
                                     TensorView dw, Update dw_update) {
  timed("head_rmsnorm_backward",
        [&] { ops_->head_rmsnorm_backward(dqkv, qkv, shape, begin, end, w, rstd, dw, dw_update); });
}

void TimedOps::rope(TensorView qkv, const AttentionShape& shape, std::span<const int32_t> positions,
                    const RopeTable& table, bool inverse) {
  timed("rope", [&] { ops_->rope(qkv, shape, positions, table, inverse); });
}

void TimedOps::attention(ConstTensorView qkv, const AttentionShape& shape,
                         std::span<const int32_t> cu_seqlens, TensorView o, TensorView lse) {
  timed("attention", [&] { ops_->attention(qkv, shape, cu_seqlens, o, lse); });
}

void TimedOps::attention_backward(ConstTensorView d_o, ConstTensorView qkv, ConstTensorView o,
                                  ConstTensorView lse, const AttentionShape& shape,
                                  std::span<const int32_t> cu_seqlens, TensorView dqkv) {
  timed("attention_backward", [&] { ops_->attention_backward(d_o, qkv, o, lse, shape, cu_seqlens, dqkv); });
}

void TimedOps::attention_cached(ConstTensorView qkv, const AttentionShape& shape, TensorView k_cache,
                                TensorView v_cache, int64_t cache_length, TensorView o) {
  timed("attention_cached", [&] { ops_->attention_cached(qkv, shape, k_cache, v_cache, cache_length, o); });
}

void TimedOps::swiglu(ConstTensorView gate_up, TensorView h) {
  timed("swiglu", [&] { ops_->swiglu(gate_up, h); });
}

void TimedOps::swiglu_backward(ConstTensorView dh, ConstTensorView gate_up, TensorView dgate_up,
                               TensorView h) {
  timed("swiglu_backward", [&] { ops_->swiglu_backward(dh, gate_up, dgate_up, h); });
}

LossSums TimedOps::cross_entropy(ConstTensorView logits, std::span<const int32_t> targets,
                                 float label_smoothing, float grad_scale, TensorView dlogits) {
  LossSums sums;
  timed("cross_entropy",
        [&] { sums = ops_->cross_entropy(logits, targets, label_smoothing, grad_scale, dlogits); });
  return sums;
}

void TimedOps::cross_entropy_add_chunk(ConstTensorView logits, int64_t first_column,
                                       std::span<const int32_t> targets, float label_smoothing,
                                       std::span<SoftmaxRow> rows) {
  timed("cross_entropy",
        [&] { ops_->cross_entropy_add_chunk(logits, first_column, targets, label_smoothing, rows); });
}

LossSums TimedOps::cross_entropy_loss(std::span<const SoftmaxRow> rows, std::span<const int32_t> targets,
                                      int64_t vocab_size, float label_smoothing) {
  LossSums sums;
  timed("cross_entropy",
        [&] { sums = ops_->cross_entropy_loss(rows, targets, vocab_size, label_smoothing); });
  return sums;
}

void TimedOps::cross_entropy_chunk_gradient(ConstTensorView logits, int64_t first_column, int64_t vocab_size,
                                            std::span<const int32_t> targets,
                                            std::span<const SoftmaxRow> rows, float label_smoothing,
                                            float grad_scale, TensorView dlogits) {
  timed("cross_entropy", [&] {
    ops_->cross_entropy_chunk_gradient(logits, first_column, vocab_size, targets, rows, label_smoothing,
                                       grad_scale, dlogits);
  });
}

}  // namespace tessera
