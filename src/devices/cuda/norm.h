// kernels/rmsnorm on the device. Rows R or tokens T, width D or head size E; statistics in float32.
#pragma once

#include <cstdint>

#include "devices/cuda/cuda_stream.h"
#include "kernels/attention/attention_shape.h"
#include "kernels/update.h"

namespace tessera::cuda {

// y_RD = x rstd w, rstd_R = 1 / sqrt(mean(x^2) + eps). y may be x.
template <typename A>
void rmsnorm(const A* x_RD, const A* w_D, float eps, A* y_RD, float* rstd_R, int64_t R, int64_t D,
             CudaStream stream);

// x_TD += y_TD, rounded to A, then rmsnorm of the sum.
template <typename A>
void add_rmsnorm(A* x_TD, const A* y_TD, const A* w_D, float eps, A* norm_TD, float* rstd_T, int64_t T,
                 int64_t D, CudaStream stream);

// dx_RD = or += rstd (dy w - x rstd^2 mean(dy w x)); dx may be dy. dw_D = or += sum of dy x rstd over rows;
// null: not wanted, and no scratch (scratch.h) is needed. Partial sums of dw are of a fixed number of rows
// and added in a fixed order.
template <typename A>
void rmsnorm_backward(const A* dy_RD, const A* x_RD, const A* w_D, const float* rstd_R, A* dx_RD,
                      Update dx_update, float* dw_D, Update dw_update, int64_t R, int64_t D, void* scratch,
                      CudaStream stream);

// rmsnorm over E of heads [head_begin, head_end) of T fused rows; others are copied when y is not x. rstd is
// [T, head_end - head_begin].
template <typename A>
void head_rmsnorm(const A* qkv_TQ, const AttentionShape& shape, int64_t head_begin, int64_t head_end,
                  const A* w_E, float eps, A* y_TQ, float* rstd, int64_t T, CudaStream stream);

// In place on heads [head_begin, head_end) of dqkv. dw_E = or += ; null: not wanted.
template <typename A>
void head_rmsnorm_backward(A* dqkv_TQ, const A* qkv_TQ, const AttentionShape& shape, int64_t head_begin,
                           int64_t head_end, const A* w_E, const float* rstd, float* dw_E, Update dw_update,
                           int64_t T, void* scratch, CudaStream stream);

}  // namespace tessera::cuda
