#include "model/loss_head.h"

#include <algorithm>
#include <cstring>

#include "model/allocate.h"
#include "tensor/packed_batch.h"

namespace tessera {

int64_t logits_rows(int64_t num_tokens, int64_t vocab_size) {
  const int64_t within_bytes = kLogitsChunkBytes / (vocab_size * dtype_bytes(DType::kF32));
  return std::min(num_tokens, std::max(within_bytes, kMinLogitsRows));
}

LossHeadScratch allocate_loss_head_scratch(Arena& arena, const ModelConfig& config, DType dtype,
                                           int64_t num_tokens, bool training) {
  const int64_t num_rows = logits_rows(num_tokens, config.vocab_size);
  const auto size = static_cast<size_t>(num_tokens);
  LossHeadScratch scratch;
  scratch.norm_TD = allocate_tensor(arena, dtype, {num_tokens, config.hidden_size});
  scratch.rstd_T = allocate_tensor(arena, DType::kF32, {num_tokens});
  scratch.logits_RV = allocate_tensor(arena, DType::kF32, {num_rows, config.vocab_size});
  if (training) {
    scratch.dlogits_RV = dtype == DType::kF32 ? scratch.logits_RV
                                              : allocate_tensor(arena, dtype, {num_rows, config.vocab_size});
  }
  scratch.rows = {arena.allocate<int32_t>(num_tokens), size};
  scratch.targets = {arena.allocate<int32_t>(num_tokens), size};
  return scratch;
}

namespace {

// Fills scratch.rows and scratch.targets; returns how many rows have a target.
int64_t select_targets(std::span<const int32_t> targets, const LossHeadScratch& scratch) {
  size_t count = 0;
  for (size_t t = 0; t < targets.size(); ++t) {
    if (targets[t] == kIgnoredLabel) continue;
    scratch.rows[count] = static_cast<int32_t>(t);
    scratch.targets[count] = targets[t];
    ++count;
  }
  return static_cast<int64_t>(count);
}

// x[i] = x[rows[i]] in place: rows ascend, so a row is read before it is overwritten.
void gather_rows(std::span<const int32_t> rows, TensorView x_TD) {
  const int64_t row_bytes = x_TD.dim(1) * dtype_bytes(x_TD.dtype());
  for (size_t i = 0; i < rows.size(); ++i) {
    if (rows[i] == static_cast<int32_t>(i)) continue;
    std::memcpy(x_TD.bytes() + static_cast<int64_t>(i) * row_bytes, x_TD.bytes() + rows[i] * row_bytes,
                static_cast<size_t>(row_bytes));
  }
}

// x[rows[i]] = x[i] in place, last row first; all other rows become zero.
void scatter_rows(std::span<const int32_t> rows, TensorView x_TD) {
  const int64_t row_bytes = x_TD.dim(1) * dtype_bytes(x_TD.dtype());
  auto remaining = static_cast<int64_t>(rows.size());
  for (int64_t t = x_TD.dim(0) - 1; t >= 0; --t) {
    std::byte* destination = x_TD.bytes() + t * row_bytes;
    if (remaining > 0 && rows[static_cast<size_t>(remaining - 1)] == t) {
      --remaining;
      if (remaining == t) return;  // this row and all before it are in place
      std::memcpy(destination, x_TD.bytes() + remaining * row_bytes, static_cast<size_t>(row_bytes));
    } else {
      std::memset(destination, 0, static_cast<size_t>(row_bytes));
    }
  }
}

void add_to(LossSums& sums, const LossSums& chunk) {
  sums.loss_sum += chunk.loss_sum;
  sums.num_targets += chunk.num_targets;
}

}  // namespace

LossSums loss_head_forward(Ops& ops, float norm_eps, const LossHeadWeights& weights,
                           std::span<const int32_t> targets, float label_smoothing, TensorView x_TD,
                           const LossHeadScratch& scratch) {
  const int64_t count = select_targets(targets, scratch);
  LossSums sums;
  if (count == 0) return sums;

  gather_rows(scratch.rows.first(static_cast<size_t>(count)), x_TD);
  const TensorView norm_ND = scratch.norm_TD.rows(0, count);
  ops.rmsnorm(x_TD.rows(0, count), weights.norm_D, norm_eps, norm_ND, scratch.rstd_T.rows(0, count));
  const int64_t chunk_rows = scratch.logits_RV.dim(0);
  for (int64_t begin = 0; begin < count; begin += chunk_rows) {
    const int64_t end = std::min(begin + chunk_rows, count);
    const TensorView logits_RV = scratch.logits_RV.rows(0, end - begin);
    ops.linear(norm_ND.rows(begin, end), weights.lm_head_VD, /*bias_N=*/{}, logits_RV);
    add_to(sums, ops.cross_entropy(logits_RV, scratch.targets.subspan(begin, end - begin), label_smoothing,
                                   /*grad_scale=*/0, /*dlogits_RV=*/{}));
  }
  return sums;
}

LossSums loss_head_forward_backward(Ops& ops, float norm_eps, const LossHeadWeights& weights,
                                    const LossHeadGrads& grads, Update update,
                                    std::span<const int32_t> targets, float label_smoothing, float grad_scale,
                                    TensorView x_TD, const LossHeadScratch& scratch, TensorView dx_TD) {
  const int64_t count = select_targets(targets, scratch);
  const std::span<const int32_t> rows = scratch.rows.first(static_cast<size_t>(count));
  LossSums sums;
  if (count == 0) {
    scatter_rows(rows, dx_TD);
    return sums;
  }

  // forward (1)
  gather_rows(rows, x_TD);
  const TensorView x_ND = x_TD.rows(0, count);
  const TensorView norm_ND = scratch.norm_TD.rows(0, count);
  const TensorView rstd_N = scratch.rstd_T.rows(0, count);
  ops.rmsnorm(x_ND, weights.norm_D, norm_eps, norm_ND, rstd_N);

  const int64_t chunk_rows = scratch.logits_RV.dim(0);
  for (int64_t begin = 0; begin < count; begin += chunk_rows) {
    const int64_t end = std::min(begin + chunk_rows, count);
    const TensorView norm_RD = norm_ND.rows(begin, end);
    const TensorView logits_RV = scratch.logits_RV.rows(0, end - begin);
    const TensorView dlogits_RV = scratch.dlogits_RV.rows(0, end - begin);
    // forward (2), (3) and backward (3) loss = cross_entropy(logits)
    ops.linear(norm_RD, weights.lm_head_VD, /*bias_N=*/{}, logits_RV);
    add_to(sums, ops.cross_entropy(logits_RV, scratch.targets.subspan(begin, end - begin), label_smoothing,
                                   grad_scale, dlogits_RV));
    // (2) logits = norm w^T
    ops.linear_backward_weight(dlogits_RV, norm_RD, grads.lm_head_VD, begin == 0 ? update : Update::kAdd);
    const TensorView dnorm_RD = norm_RD;  // these rows of norm are not needed any more
    ops.linear_backward_input(dlogits_RV, weights.lm_head_VD, dnorm_RD, Update::kOverwrite);
  }

  // (1) x' = rows of x that have a target,  norm = rmsnorm(x')
  const TensorView dnorm_ND = norm_ND;
  ops.rmsnorm_backward(dnorm_ND, x_ND, weights.norm_D, rstd_N, dx_TD.rows(0, count), Update::kOverwrite,
                       grads.norm_D, update);
  scatter_rows(rows, dx_TD);
  return sums;
}

}  // namespace tessera
