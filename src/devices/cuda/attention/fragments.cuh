// BF16 tiles of queries, keys and values in shared memory, and the fragments of them that the tensor cores
// take.
#pragma once

#include "devices/cuda/attention/sums.cuh"
#include "devices/cuda/launch.cuh"

namespace tessera::cuda {

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

// Stores the warp's sums times the factors of their rows, rounded, to rows [row, row + 16 kM) of the tile;
// then copies those below num_rows to `to` (of row 0 of the tile), whole rows at a time.
template <int kE, int kM>
__device__ inline void store_sums(const Sums<kM, kE / 8>& c, const float (&factors)[kM][2], bf16* tile,
                                  int row, int num_rows, int E, bf16* to, int64_t stride) {
  constexpr int kChunks = kE / 8;
  const int lane = threadIdx.x % 32;
  __syncwarp();  // all reads of the tile are done
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
