#include "devices/cuda/norm.h"

#include <algorithm>

#include "devices/cuda/elementwise.h"
#include "devices/cuda/pieces.cuh"
#include "devices/cuda/scratch.h"

namespace tessera::cuda {
namespace {

// A row that is at most 32 pieces wide belongs to a warp, others to a block.
constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

// Rows of one partial sum of dw.
int64_t rows_per_partial(int64_t rows) {
  return std::max(kLeastNormRows, divide_up(rows, kMostNormPartials));
}

// Shared memory for the sums of a block; wider rows are summed in global memory.
constexpr int64_t kMostSharedBytes = 40 << 10;

// The rows of a matrix, or `heads` heads of every row of one.
struct NormRows {
  int64_t count;   // of all heads
  int64_t heads;   // per row of the matrix
  int64_t stride;  // elements between rows of the matrix
  int64_t first;   // elements before the first of the heads
  int width;       // D or E

  __device__ int64_t start(int64_t r) const {
    if (heads == 1) return r * stride + first;
    return r / heads * stride + first + r % heads * width;
  }
};

NormRows matrix_rows(int64_t R, int64_t D) { return {R, 1, D, 0, static_cast<int>(D)}; }

NormRows head_rows(int64_t T, const AttentionShape& shape, int64_t head_begin, int64_t head_end) {
  const int64_t heads = head_end - head_begin;
  return {T * heads, heads, shape.qkv_width(), head_begin * shape.head_dim, static_cast<int>(shape.head_dim)};
}

// Over the threads that share a row.
template <bool kWarpPerRow>
__device__ float row_sum(float value, float* scratch) {
  if constexpr (kWarpPerRow) {
    return warp_sum(value);
  } else {
    return block_sum(value, scratch);
  }
}

// y = (x + other) rstd w, where there is `other`; then the rounded sum goes to `sum`, which may be x.
template <typename A, int kWidth, bool kWarpPerRow, bool kAdds>
__global__ void __launch_bounds__(kThreads)
    norm_kernel(const A* x, const A* other, A* sum, const A* w, float eps, A* y, float* rstd, NormRows rows) {
  __shared__ float scratch[32];
  const int lane = static_cast<int>(kWarpPerRow ? threadIdx.x % 32 : threadIdx.x);
  const int lanes = static_cast<int>(kWarpPerRow ? 32 : blockDim.x);
  const int64_t r = kWarpPerRow ? static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32
                                : static_cast<int64_t>(blockIdx.x);
  if (r >= rows.count) return;
  const int64_t start = rows.start(r);
  float squares = 0;
  for (int i = lane * kWidth; i < rows.width; i += lanes * kWidth) {
    float values[kWidth];
    load_piece(x + start + i, values);
    if constexpr (kAdds) {
      float added[kWidth];
      load_piece(other + start + i, added);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) values[k] = rounded(values[k] + added[k], x);
      store_piece(sum + start + i, values);
    }
#pragma unroll
    for (int k = 0; k < kWidth; ++k) squares += values[k] * values[k];
  }
  squares = row_sum<kWarpPerRow>(squares, scratch);
  const float scale = 1 / sqrtf(squares / static_cast<float>(rows.width) + eps);
  if (lane == 0) rstd[r] = scale;
  const A* from = kAdds ? sum : x;  // from the first-level cache
  for (int i = lane * kWidth; i < rows.width; i += lanes * kWidth) {
    float values[kWidth], weights[kWidth];
    load_piece(from + start + i, values);
    load_piece(w + i, weights);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) values[k] = values[k] * scale * weights[k];
    store_piece(y + start + i, values);
  }
}

template <typename A>
struct NormGradient {
  const A* dy;
  const A* x;
  const A* w;
  const float* rstd;
  A* dx;
};

// One row: dx = or += rstd (dy w - x rstd^2 mean(dy w x)); sums += dy x rstd unless null. Every lane has its
// own columns.
template <typename A, int kWidth, bool kWarpPerRow, bool kAdds>
__device__ void backward_row(const NormGradient<A>& of, int64_t start, float rstd, int width, int lane,
                             int lanes, float* sums, float* scratch) {
  float product = 0;
  for (int i = lane * kWidth; i < width; i += lanes * kWidth) {
    float dy[kWidth], x[kWidth], w[kWidth];
    load_piece(of.dy + start + i, dy);
    load_piece(of.x + start + i, x);
    load_piece(of.w + i, w);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) product += dy[k] * w[k] * x[k];
  }
  product = row_sum<kWarpPerRow>(product, scratch);
  const float projection = rstd * rstd * rstd * (product / static_cast<float>(width));
  for (int i = lane * kWidth; i < width; i += lanes * kWidth) {
    float dy[kWidth], x[kWidth], w[kWidth], dx[kWidth] = {};
    load_piece(of.dy + start + i, dy);
    load_piece(of.x + start + i, x);
    load_piece(of.w + i, w);
    if constexpr (kAdds) load_piece(of.dx + start + i, dx);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      dy[k] *= rstd;
      dx[k] += dy[k] * w[k] - x[k] * projection;
    }
    store_piece(of.dx + start + i, dx);
    if (sums == nullptr) continue;
    float dw[kWidth];
    load_piece(sums + i, dw);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) dw[k] += dy[k] * x[k];
    store_piece(sums + i, dw);
  }
}

// partials [blocks, D] (may be null): the sums of dy x rstd over the rows of each block.
template <typename A, int kWidth, bool kWarpPerRow, bool kAdds>
__global__ void __launch_bounds__(kThreads)
    norm_backward_kernel(NormGradient<A> of, NormRows rows, int64_t rows_per_block, float* partials,
                         bool in_shared) {
  __shared__ float scratch[32];
  const int warp = static_cast<int>(threadIdx.x / 32);
  const int lane = static_cast<int>(kWarpPerRow ? threadIdx.x % 32 : threadIdx.x);
  const int lanes = static_cast<int>(kWarpPerRow ? 32 : blockDim.x);
  float* const partial =
      partials == nullptr ? nullptr : partials + static_cast<int64_t>(blockIdx.x) * rows.width;
  float* sums = partial;
  if (partial != nullptr && in_shared) {
    sums = dynamic_shared<float>() + (kWarpPerRow ? warp * rows.width : 0);
  }
  if (sums != nullptr) {
    const float zeros[kWidth] = {};
    for (int i = lane * kWidth; i < rows.width; i += lanes * kWidth) store_piece(sums + i, zeros);
  }
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * rows_per_block;
  const int64_t end = begin + rows_per_block < rows.count ? begin + rows_per_block : rows.count;
  for (int64_t r = begin + (kWarpPerRow ? warp : 0); r < end; r += kWarpPerRow ? kWarps : 1) {
    backward_row<A, kWidth, kWarpPerRow, kAdds>(of, rows.start(r), of.rstd[r], rows.width, lane, lanes, sums,
                                                scratch);
  }
  if (partial == nullptr || !in_shared) return;
  __syncthreads();
  for (int i = static_cast<int>(threadIdx.x); i < rows.width; i += static_cast<int>(blockDim.x)) {
    float total = 0;
    for (int k = 0; k < (kWarpPerRow ? kWarps : 1); ++k) {
      total += dynamic_shared<float>()[k * rows.width + i];
    }
    partial[i] = total;
  }
}

// Heads [0, begin) and [end, heads) of every row, in units.
template <typename Unit>
__global__ void __launch_bounds__(kThreads)
    copy_others_kernel(const Unit* from, Unit* to, int begin, int end, int row_units) {
  const int64_t start = static_cast<int64_t>(blockIdx.x) * row_units;
  for (int i = static_cast<int>(threadIdx.x); i < row_units; i += static_cast<int>(blockDim.x)) {
    if (i < begin || i >= end) to[start + i] = from[start + i];
  }
}

template <typename A, int kWidth, bool kAdds>
void run_norm(const A* x, const A* other, A* sum, const A* w, float eps, A* y, float* rstd,
              const NormRows& rows, CudaStream stream) {
  const int64_t pieces = rows.width / kWidth;
  if (pieces <= 32) {
    launch(norm_kernel<A, kWidth, true, kAdds>, num_blocks(rows.count, kWarps), kThreads, 0, stream, x, other,
           sum, w, eps, y, rstd, rows);
  } else {
    launch(norm_kernel<A, kWidth, false, kAdds>, num_blocks(rows.count, 1), num_threads(pieces, kThreads), 0,
           stream, x, other, sum, w, eps, y, rstd, rows);
  }
}

template <typename A, int kWidth>
void run_backward(const NormGradient<A>& of, bool adds, const NormRows& rows, float* partials,
                  CudaStream stream) {
  const int64_t pieces = rows.width / kWidth;
  const int64_t rows_per_block = rows_per_partial(rows.count);
  const bool warp_per_row = pieces <= 32;
  const int64_t sums_bytes = (warp_per_row ? kWarps : 1) * rows.width * static_cast<int64_t>(sizeof(float));
  const bool in_shared = sums_bytes <= kMostSharedBytes;
  const auto kernel = warp_per_row ? (adds ? norm_backward_kernel<A, kWidth, true, true>
                                           : norm_backward_kernel<A, kWidth, true, false>)
                                   : (adds ? norm_backward_kernel<A, kWidth, false, true>
                                           : norm_backward_kernel<A, kWidth, false, false>);
  launch(kernel, num_blocks(rows.count, rows_per_block),
         warp_per_row ? kThreads : num_threads(pieces, kThreads),
         in_shared && partials != nullptr ? static_cast<size_t>(sums_bytes) : 0, stream, of, rows,
         rows_per_block, partials, in_shared);
}

template <typename A>
void norm_backward(const NormGradient<A>& of, bool adds, const NormRows& rows, float* dw, Update dw_update,
                   void* scratch, CudaStream stream) {
  auto* const partials = dw == nullptr ? nullptr : static_cast<float*>(scratch);
  if (has_pieces<A>(rows.width, {of.dy, of.x, of.w, of.dx, partials})) {
    run_backward<A, kVector<A>>(of, adds, rows, partials, stream);
  } else {
    run_backward<A, 1>(of, adds, rows, partials, stream);
  }
  if (dw == nullptr) return;
  sum_rows(partials, divide_up(rows.count, rows_per_partial(rows.count)), rows.width, dw, dw_update, stream);
}

}  // namespace

template <typename A>
void rmsnorm(const A* x_RD, const A* w_D, float eps, A* y_RD, float* rstd_R, int64_t R, int64_t D,
             CudaStream stream) {
  const NormRows rows = matrix_rows(R, D);
  const A* const other = nullptr;
  A* const sum = nullptr;
  if (has_pieces<A>(D, {x_RD, w_D, y_RD})) {
    run_norm<A, kVector<A>, false>(x_RD, other, sum, w_D, eps, y_RD, rstd_R, rows, stream);
  } else {
    run_norm<A, 1, false>(x_RD, other, sum, w_D, eps, y_RD, rstd_R, rows, stream);
  }
}

template <typename A>
void add_rmsnorm(A* x_TD, const A* y_TD, const A* w_D, float eps, A* norm_TD, float* rstd_T, int64_t T,
                 int64_t D, CudaStream stream) {
  const NormRows rows = matrix_rows(T, D);
  if (has_pieces<A>(D, {x_TD, y_TD, w_D, norm_TD})) {
    run_norm<A, kVector<A>, true>(x_TD, y_TD, x_TD, w_D, eps, norm_TD, rstd_T, rows, stream);
  } else {
    run_norm<A, 1, true>(x_TD, y_TD, x_TD, w_D, eps, norm_TD, rstd_T, rows, stream);
  }
}

template <typename A>
void rmsnorm_backward(const A* dy_RD, const A* x_RD, const A* w_D, const float* rstd_R, A* dx_RD,
                      Update dx_update, float* dw_D, Update dw_update, int64_t R, int64_t D, void* scratch,
                      CudaStream stream) {
  norm_backward<A>({dy_RD, x_RD, w_D, rstd_R, dx_RD}, dx_update == Update::kAdd, matrix_rows(R, D), dw_D,
                   dw_update, scratch, stream);
}

template <typename A>
void head_rmsnorm(const A* qkv_TQ, const AttentionShape& shape, int64_t head_begin, int64_t head_end,
                  const A* w_E, float eps, A* y_TQ, float* rstd, int64_t T, CudaStream stream) {
  const NormRows rows = head_rows(T, shape, head_begin, head_end);
  const bool in_pieces = has_pieces<A>(shape.head_dim, {qkv_TQ, w_E, y_TQ});
  if (y_TQ != qkv_TQ && rows.heads * rows.width < rows.stride) {
    const int unit = in_pieces ? kVector<A> : 1;
    const auto begin = static_cast<int>(head_begin * rows.width / unit);
    const auto end = static_cast<int>(head_end * rows.width / unit);
    const auto units = static_cast<int>(rows.stride / unit);
    if (in_pieces) {
      launch(copy_others_kernel<uint4>, num_blocks(T, 1), num_threads(units, kThreads), 0, stream,
             reinterpret_cast<const uint4*>(qkv_TQ), reinterpret_cast<uint4*>(y_TQ), begin, end, units);
    } else {
      launch(copy_others_kernel<A>, num_blocks(T, 1), num_threads(units, kThreads), 0, stream, qkv_TQ, y_TQ,
             begin, end, units);
    }
  }
  const A* const other = nullptr;
  A* const sum = nullptr;
  if (in_pieces) {
    run_norm<A, kVector<A>, false>(qkv_TQ, other, sum, w_E, eps, y_TQ, rstd, rows, stream);
  } else {
    run_norm<A, 1, false>(qkv_TQ, other, sum, w_E, eps, y_TQ, rstd, rows, stream);
  }
}

template <typename A>
void head_rmsnorm_backward(A* dqkv_TQ, const A* qkv_TQ, const AttentionShape& shape, int64_t head_begin,
                           int64_t head_end, const A* w_E, const float* rstd, float* dw_E, Update dw_update,
                           int64_t T, void* scratch, CudaStream stream) {
  norm_backward<A>({dqkv_TQ, qkv_TQ, w_E, rstd, dqkv_TQ}, false, head_rows(T, shape, head_begin, head_end),
                   dw_E, dw_update, scratch, stream);
}

#define TESSERA_INSTANTIATE(A)                                                                              \
  template void rmsnorm<A>(const A*, const A*, float, A*, float*, int64_t, int64_t, CudaStream);            \
  template void add_rmsnorm<A>(A*, const A*, const A*, float, A*, float*, int64_t, int64_t, CudaStream);    \
  template void rmsnorm_backward<A>(const A*, const A*, const A*, const float*, A*, Update, float*, Update, \
                                    int64_t, int64_t, void*, CudaStream);                                   \
  template void head_rmsnorm<A>(const A*, const AttentionShape&, int64_t, int64_t, const A*, float, A*,     \
                                float*, int64_t, CudaStream);                                               \
  template void head_rmsnorm_backward<A>(A*, const A*, const AttentionShape&, int64_t, int64_t, const A*,   \
                                         const float*, float*, Update, int64_t, void*, CudaStream)
TESSERA_INSTANTIATE(bf16);
TESSERA_INSTANTIATE(float);
#undef TESSERA_INSTANTIATE

}  // namespace tessera::cuda
