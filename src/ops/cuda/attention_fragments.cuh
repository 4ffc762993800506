// BF16 tiles of queries, keys and values in shared memory, and the fragments of them that the tensor cores
// take.
#pragma once

#include "ops/cuda/attention.h"
#include "ops/cuda/launch.cuh"
#include "ops/cuda/mma.cuh"
#include "ops/cuda/numbers.cuh"

namespace tessera::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;

// What the kernels know of a call.
struct AttentionProblem {
  const bf16 *q, *k, *v;  // first head of the first row
  int64_t Q;              // between rows
  const AttentionBlock* blocks;
  int num_blocks;
  int T, H, G, E;
  int window;  // more than any distance if there is none
  float scale;
};

inline constexpr int kNoWindow = 1 << 30;

inline AttentionProblem make_problem(const bf16* qkv, const AttentionShape& shape,
                                     const AttentionBatch& batch) {
  const int64_t E = shape.head_dim, H = shape.num_heads, G = shape.num_key_value_heads;
  const bool is_limited = shape.sliding_window > 0 && shape.sliding_window < kNoWindow;
  return {.q = qkv,
          .k = qkv + H * E,
          .v = qkv + (H + G) * E,
          .Q = shape.qkv_width(),
          .blocks = batch.blocks,
          .num_blocks = static_cast<int>(batch.num_blocks),
          .T = static_cast<int>(batch.T),
          .H = static_cast<int>(H),
          .G = static_cast<int>(G),
          .E = static_cast<int>(E),
          .window = is_limited ? static_cast<int>(shape.sliding_window) : kNoWindow,
          .scale = shape.scale};
}

// Whether the tensor cores take this call: smaller heads are padded with zeros.
inline bool takes_tensor_cores(const AttentionShape& shape) {
  return shape.head_dim % 8 == 0 && shape.head_dim <= 128 && shape.scale > 0;
}

// A block of kRows rows of one sequence. A kernel that takes several of the list's blocks at once leaves the
// others out.
struct BlockRows {
  int begin, length;  // of the sequence
  int first;          // the block's first row in it
  bool exists;
};
template <int kRows>
__device__ inline BlockRows block_rows(const AttentionBlock& block) {
  static_assert(kRows % kAttentionRows == 0);
  return {block.begin, block.end - block.begin, block.first_row, block.first_row % kRows == 0};
}

// A tile is kRows rows of one head, padded with zeros to kE elements. Chunk c (16 bytes) of row r is at place
// c ^ (r % 8) of its row: the eight rows of an 8 x 8 matrix are in different banks, in either direction.
template <int kE>
inline constexpr int kTileStride = kE <= 64 ? 64 : 128;
template <int kRows, int kE>
inline constexpr int kTileElements = kRows* kTileStride<kE>;

template <int kE>
__device__ inline int tile_place(int row, int chunk) {
  return row * kTileStride<kE> + ((chunk ^ (row & 7)) << 3);
}

// Starts to copy the first num_rows (at least 1) rows of E elements from `from` on, `stride` apart; zeros
// elsewhere.
template <int kRows, int kE, int kThreads>
__device__ inline void start_tile(bf16* tile, const bf16* from, int64_t stride, int num_rows, int E) {
  constexpr int kChunks = kTileStride<kE> / 8, kStep = kThreads / kChunks;  // rows between a thread's copies
  static_assert(kThreads % kChunks == 0 && kStep % 8 == 0 && kRows % kStep == 0);
  const int first = static_cast<int>(threadIdx.x) / kChunks, chunk = static_cast<int>(threadIdx.x) % kChunks;
  const int limit = chunk * 8 < E ? num_rows - first : 0;
  const bf16* source = from + first * stride + chunk * 8;
  bf16* const to = tile + tile_place<kE>(first, chunk);
#pragma unroll
  for (int row = 0; row < kRows; row += kStep, source += kStep * stride) {
    copy_16_bytes(to + row * kTileStride<kE>, row < limit ? source : from, row < limit);
  }
}

// Rows [row, row + 16) x columns [16 step, 16 step + 16) as a left operand.
template <int kE>
__device__ inline void load_left(uint32_t (&a)[4], const bf16* tile, int row, int step) {
  const int lane = threadIdx.x % 32;
  load_matrices(a, tile + tile_place<kE>(row + lane % 16, 2 * step + lane / 16));
}
// The transpose of these rows and columns as right operands: b[0], b[1] for the first 8 rows, b[2], b[3] for
// the others.
template <int kE>
__device__ inline void load_right_transposed(uint32_t (&b)[4], const bf16* tile, int row, int step) {
  const int lane = threadIdx.x % 32;
  load_matrices(b, tile + tile_place<kE>(row + lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2));
}
// Rows [row, row + 16) x columns [16 pair, 16 pair + 16) as right operands: b[0], b[1] for the first 8
// columns, b[2], b[3] for the others.
template <int kE>
__device__ inline void load_right(uint32_t (&b)[4], const bf16* tile, int row, int pair) {
  const int lane = threadIdx.x % 32;
  load_matrices_transposed(b, tile + tile_place<kE>(row + lane % 16, 2 * pair + lane / 16));
}

// The sums of a warp: 16 kM rows x 8 kN columns; element (16 m + 8 (e / 2) + lane / 4, 8 n + 2 (lane % 4) + e
// % 2) is c[m][n][e].
template <int kM, int kN>
using Sums = float[kM][kN][4];

template <int kM, int kN>
__device__ inline void clear(Sums<kM, kN>& c) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) c[m][n][e] = 0;
    }
  }
}

// c = a b^T for rows [row_a, row_a + 16 kM) of a and the 8 kN rows of b, over kE columns.
template <int kE, int kM, int kN>
__device__ inline void multiply_transposed(Sums<kM, kN>& c, const bf16* a, int row_a, const bf16* b) {
  clear<kM, kN>(c);
#pragma unroll
  for (int step = 0; step < kE / 16; ++step) {
    uint32_t left[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) load_left<kE>(left[m], a, row_a + 16 * m, step);
#pragma unroll
    for (int n = 0; n < kN; n += 2) {
      uint32_t right[4];
      load_right_transposed<kE>(right, b, 8 * n, step);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_m16n8k16(c[m][n], left[m], right[0], right[1]);
        mma_m16n8k16(c[m][n + 1], left[m], right[2], right[3]);
      }
    }
  }
}

// The sums of columns [16 step, 16 step + 16), rounded to BF16, as a left operand.
template <int kN>
__device__ inline void round_to_left(uint32_t (&a)[4], const float (&c)[kN][4], int step) {
  a[0] = pack_bf16(c[2 * step][0], c[2 * step][1]);
  a[1] = pack_bf16(c[2 * step][2], c[2 * step][3]);
  a[2] = pack_bf16(c[2 * step + 1][0], c[2 * step + 1][1]);
  a[3] = pack_bf16(c[2 * step + 1][2], c[2 * step + 1][3]);
}

// c += a b for sums a [16 kM, 8 kK] rounded to BF16 and b [8 kK, kE].
template <int kE, int kM, int kK>
__device__ inline void multiply_sums(Sums<kM, kE / 8>& c, const Sums<kM, kK>& a, const bf16* b) {
#pragma unroll
  for (int step = 0; step < kK / 2; ++step) {
    uint32_t left[kM][4];
#pragma unroll
    for (int m = 0; m < kM; ++m) round_to_left<kK>(left[m], a[m], step);
#pragma unroll
    for (int pair = 0; pair < kE / 16; ++pair) {
      uint32_t right[4];
      load_right<kE>(right, b, 16 * step, pair);
#pragma unroll
      for (int m = 0; m < kM; ++m) {
        mma_m16n8k16(c[m][2 * pair], left[m], right[0], right[1]);
        mma_m16n8k16(c[m][2 * pair + 1], left[m], right[2], right[3]);
      }
    }
  }
}

// Rows [row, row + 16 kM) of the tile = the warp's sums times the factors of their rows, rounded; then those
// of them below num_rows go to `to` (of row 0 of the tile), whole rows at a time.
template <int kE, int kM>
__device__ inline void store_sums(const Sums<kM, kE / 8>& c, const float (&factors)[kM][2], bf16* tile,
                                  int row, int num_rows, int E, bf16* to, int64_t stride) {
  constexpr int kChunks = kE / 8;
  const int lane = threadIdx.x % 32;
  __syncwarp();  // nobody reads the tile any more
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kChunks; ++n) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int place = tile_place<kE>(row + 16 * m + 8 * half + lane / 4, n) + 2 * (lane % 4);
        *reinterpret_cast<uint32_t*>(tile + place) =
            pack_bf16(c[m][n][2 * half] * factors[m][half], c[m][n][2 * half + 1] * factors[m][half]);
      }
    }
  }
  __syncwarp();
  for (int at = lane; at < 16 * kM * kChunks; at += 32) {
    const int r = row + at / kChunks, chunk = at % kChunks;
    if (r >= num_rows || chunk * 8 >= E) continue;
    *reinterpret_cast<uint4*>(to + r * stride + chunk * 8) =
        *reinterpret_cast<const uint4*>(tile + tile_place<kE>(r, chunk));
  }
}

}  // namespace tessera::cuda
