// Root-mean-square normalisation over rows: alone, fused with the residual addition, and per head of a fused
// query/key/value row. Zhang and Sennrich, 2019; the form used by Llama and Qwen3. Of a weight with an offset
// (norm_weight.h) w stands for the sum.
//
//   rstd_R = 1 / sqrt(mean_D(x^2) + eps)     y_RD = w_D x_RD rstd_R
//   g = dy w      dx = rstd (g - x rstd^2 mean_D(g x))      dw_D = or += sum_R dy x rstd
//
// Activations and weights are BF16 or F32, the same dtype in one call; statistics and sums are float32 (rstd,
// dw are F32); outputs are rounded once. dw is summed over blocks of a fixed number of rows, the blocks in
// order, so results do not depend on the number of threads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/attention/attention_shape.h"
#include "kernels/rmsnorm/norm_weight.h"
#include "kernels/update.h"
#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

// y may be x.
void rmsnorm(ConstTensorView x_RD, const NormWeight& w_D, float eps, TensorView y_RD, TensorView rstd_R,
             ThreadPool& pool);

// x_TD += y_TD, rounded to the dtype of x, then rmsnorm of the sum.
void add_rmsnorm(TensorView x_TD, ConstTensorView y_TD, const NormWeight& w_D, float eps, TensorView norm_TD,
                 TensorView rstd_T, ThreadPool& pool);

// Bytes of scratch for the partial sums of dw over `rows` rows.
int64_t rmsnorm_backward_scratch_bytes(int64_t rows, int64_t width);

// dx_RD = or += the gradient through the norm (dx may be dy), dw_D = or += ; an empty dw is not wanted.
void rmsnorm_backward(ConstTensorView dy_RD, ConstTensorView x_RD, const NormWeight& w_D,
                      ConstTensorView rstd_R, TensorView dx_RD, Update dx_update, TensorView dw_D,
                      Update dw_update, std::span<std::byte> scratch, ThreadPool& pool);

// rmsnorm over E of heads [head_begin, head_end) of fused rows, or with a weight as wide as all of them one
// norm over these; the other heads are copied when y is another buffer (y may be x). rstd is F32 [T, norms].
void head_rmsnorm(ConstTensorView qkv_TQ, const AttentionShape& shape, int64_t head_begin, int64_t head_end,
                  const NormWeight& w_E, float eps, TensorView y_TQ, TensorView rstd, ThreadPool& pool);

// Bytes of scratch for head_rmsnorm_backward with a weight of this width.
int64_t head_rmsnorm_backward_scratch_bytes(int64_t tokens, int64_t weight_width);

// In place on heads [head_begin, head_end) of dqkv_TQ, other heads untouched; qkv_TQ is the input of the
// forward call. dw_E = or += ; an empty dw is not wanted.
void head_rmsnorm_backward(TensorView dqkv_TQ, ConstTensorView qkv_TQ, const AttentionShape& shape,
                           int64_t head_begin, int64_t head_end, const NormWeight& w_E, ConstTensorView rstd,
                           TensorView dw_E, Update dw_update, std::span<std::byte> scratch, ThreadPool& pool);

}  // namespace tessera
