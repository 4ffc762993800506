#include "devices/cuda/rotary.h"

#include "devices/cuda/pieces.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;

// A block rotates the row of one token; a thread, pieces of both halves of a head.
template <typename A, int kWidth>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(A* qkv, int64_t Q, int num_rotated, int half, const int32_t* positions, const float* cos,
                const float* sin, float sign) {
  A* const row = qkv + static_cast<int64_t>(blockIdx.x) * Q;
  const int64_t angle = static_cast<int64_t>(positions[blockIdx.x]) * half;
  const int pieces_per_head = half / kWidth, pieces = num_rotated * pieces_per_head;
  for (int piece = static_cast<int>(threadIdx.x); piece < pieces; piece += static_cast<int>(blockDim.x)) {
    const int i = piece % pieces_per_head * kWidth;
    A* const first = row + static_cast<int64_t>(piece / pieces_per_head) * 2 * half + i;
    A* const second = first + half;
    float a[kWidth], b[kWidth], c[kWidth], s[kWidth];
    load_piece(first, a);
    load_piece(second, b);
    load_piece(cos + angle + i, c);
    load_piece(sin + angle + i, s);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      const float from_a = a[k], from_b = b[k];
      a[k] = from_a * c[k] - sign * s[k] * from_b;
      b[k] = from_b * c[k] + sign * s[k] * from_a;
    }
    store_piece(first, a);
    store_piece(second, b);
  }
}

}  // namespace

template <typename A>
void rope(A* qkv_TQ, const AttentionShape& shape, const int32_t* positions, const float* cos,
          const float* sin, bool inverse, int64_t T, CudaStream stream) {
  const int64_t half = shape.head_dim / 2, num_rotated = shape.num_heads + shape.num_key_value_heads;
  const bool in_pieces = has_pieces<A>(half, {qkv_TQ, cos, sin});
  const int64_t pieces = num_rotated * half / (in_pieces ? kVector<A> : 1);
  launch(in_pieces ? rope_kernel<A, kVector<A>> : rope_kernel<A, 1>, num_blocks(T, 1),
         num_threads(pieces, kThreads), 0, stream, qkv_TQ, shape.qkv_width(), static_cast<int>(num_rotated),
         static_cast<int>(half), positions, cos, sin, inverse ? -1.0f : 1.0f);
}

template void rope<bf16>(bf16*, const AttentionShape&, const int32_t*, const float*, const float*, bool,
                         int64_t, CudaStream);
template void rope<float>(float*, const AttentionShape&, const int32_t*, const float*, const float*, bool,
                          int64_t, CudaStream);

}  // namespace tessera::cuda
