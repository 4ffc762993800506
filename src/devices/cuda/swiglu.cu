#include "devices/cuda/swiglu.h"

#include "devices/cuda/pieces.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;

__device__ float sigmoid(float x) { return 1 / (1 + expf(-x)); }

// silu(gate) up. Both kernels compute it here: nothing is fused into or out of these two products.
__device__ float activation(float gate, float s, float up) { return __fmul_rn(__fmul_rn(gate, s), up); }

// Block b takes kThreads pieces of row b / blocks_per_row.
template <typename A, int kWidth>
__global__ void __launch_bounds__(kThreads)
    swiglu_kernel(const A* gate_up, A* h, int64_t F, unsigned blocks_per_row) {
  const int64_t t = blockIdx.x / blocks_per_row;
  const int64_t f = (static_cast<int64_t>(blockIdx.x % blocks_per_row) * kThreads + threadIdx.x) * kWidth;
  if (f >= F) return;
  const A* const from = gate_up + t * 2 * F + f;
  float gate[kWidth], up[kWidth];
  load_piece(from, gate);
  load_piece(from + F, up);
#pragma unroll
  for (int k = 0; k < kWidth; ++k) up[k] = activation(gate[k], sigmoid(gate[k]), up[k]);
  store_piece(h + t * F + f, up);
}

template <typename A, int kWidth>
__global__ void __launch_bounds__(kThreads) swiglu_backward_kernel(const A* dh, const A* gate_up, A* dgate_up,
                                                                   A* h, int64_t F, unsigned blocks_per_row) {
  const int64_t t = blockIdx.x / blocks_per_row;
  const int64_t f = (static_cast<int64_t>(blockIdx.x % blocks_per_row) * kThreads + threadIdx.x) * kWidth;
  if (f >= F) return;
  const int64_t at = t * 2 * F + f;
  float d[kWidth], gate[kWidth], up[kWidth];
  load_piece(dh + t * F + f, d);
  load_piece(gate_up + at, gate);
  load_piece(gate_up + at + F, up);
#pragma unroll
  for (int k = 0; k < kWidth; ++k) {
    const float x = gate[k], u = up[k], s = sigmoid(x);
    gate[k] = d[k] * u * s * (1 + x * (1 - s));
    up[k] = d[k] * (x * s);
    d[k] = activation(x, s, u);
  }
  store_piece(dgate_up + at, gate);
  store_piece(dgate_up + at + F, up);
  store_piece(h + t * F + f, d);
}

}  // namespace

template <typename A>
void swiglu(const A* gate_up_TF2, A* h_TF, int64_t T, int64_t F, CudaStream stream) {
  const bool in_pieces = has_pieces<A>(F, {gate_up_TF2, h_TF});
  const unsigned blocks_per_row = num_blocks(F, kThreads * (in_pieces ? kVector<A> : 1));
  launch(in_pieces ? swiglu_kernel<A, kVector<A>> : swiglu_kernel<A, 1>, num_blocks(T * blocks_per_row, 1),
         kThreads, 0, stream, gate_up_TF2, h_TF, F, blocks_per_row);
}

template <typename A>
void swiglu_backward(const A* dh_TF, const A* gate_up_TF2, A* dgate_up_TF2, A* h_TF, int64_t T, int64_t F,
                     CudaStream stream) {
  const bool in_pieces = has_pieces<A>(F, {dh_TF, gate_up_TF2, dgate_up_TF2, h_TF});
  const unsigned blocks_per_row = num_blocks(F, kThreads * (in_pieces ? kVector<A> : 1));
  launch(in_pieces ? swiglu_backward_kernel<A, kVector<A>> : swiglu_backward_kernel<A, 1>,
         num_blocks(T * blocks_per_row, 1), kThreads, 0, stream, dh_TF, gate_up_TF2, dgate_up_TF2, h_TF, F,
         blocks_per_row);
}

#define TESSERA_INSTANTIATE(A)                                         \
  template void swiglu<A>(const A*, A*, int64_t, int64_t, CudaStream); \
  template void swiglu_backward<A>(const A*, const A*, A*, A*, int64_t, int64_t, CudaStream)
TESSERA_INSTANTIATE(bf16);
TESSERA_INSTANTIATE(float);
#undef TESSERA_INSTANTIATE

}  // namespace tessera::cuda
