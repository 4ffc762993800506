// Arithmetic of attention on the sums of its products where a warp holds them: in registers, row by row and
// column by column.
#pragma once

#include <cmath>

#include "devices/cuda/attention/problem.cuh"
#include "devices/cuda/mma.cuh"

namespace tessera::cuda {

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

// The sums of columns [16 step, 16 step + 16), rounded to BF16, as a left operand.
template <int kN>
__device__ inline void round_to_left(uint32_t (&a)[4], const float (&c)[kN][4], int step) {
  a[0] = pack_bf16(c[2 * step][0], c[2 * step][1]);
  a[1] = pack_bf16(c[2 * step][2], c[2 * step][3]);
  a[2] = pack_bf16(c[2 * step + 1][0], c[2 * step + 1][1]);
  a[3] = pack_bf16(c[2 * step + 1][2], c[2 * step + 1][3]);
}

// A thread's rows of scores: 16 m + 8 half + lane / 4 of its warp.
template <int kM>
struct RowState {
  float maximum[kM][2];  // of the scores so far, before scaling
  float sum[kM][2];      // of exp; this thread's columns only

  __device__ RowState() {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
      maximum[m][0] = maximum[m][1] = -INFINITY;
      sum[m][0] = sum[m][1] = 0;
    }
  }
};

// scores = -infinity where a query does not see a key; `distance` is the first query minus the first key.
// (Keys beyond the sequence come after all of its queries.)
template <int kM, int kN>
__device__ inline void mask_scores(Sums<kM, kN>& scores, int distance, int window) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int d = distance + 16 * m + 8 * (e / 2) + lane / 4 - (8 * n + 2 * (lane % 4) + e % 2);
        if (d < 0 || d >= window) scores[m][n][e] = -INFINITY;
      }
    }
  }
}

// scores = exp(scale scores - maximum); corrections: what the new maxima change in o, as they did in the
// sums.
template <int kM, int kN>
__device__ inline void exponentiate(Sums<kM, kN>& scores, float scale_log2, RowState<kM>& state,
                                    float (&corrections)[kM][2]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float maximum = state.maximum[m][half];
#pragma unroll
      for (int n = 0; n < kN; ++n) {
        maximum = fmaxf(maximum, fmaxf(scores[m][n][2 * half], scores[m][n][2 * half + 1]));
      }
      maximum = fmaxf(maximum, __shfl_xor_sync(0xFFFFFFFFu, maximum, 1));
      maximum = fmaxf(maximum, __shfl_xor_sync(0xFFFFFFFFu, maximum, 2));
      // A row that has seen no key yet has the maximum -infinity.
      const float reference = maximum == -INFINITY ? 0.0f : maximum * scale_log2;
      const float correction = fast_exp2(fmaf(state.maximum[m][half], scale_log2, -reference));
      state.maximum[m][half] = maximum;
      float sum = state.sum[m][half] * correction;
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 2 * half; e < 2 * half + 2; ++e) {
          scores[m][n][e] = fast_exp2(fmaf(scores[m][n][e], scale_log2, -reference));
          sum += scores[m][n][e];
        }
      }
      state.sum[m][half] = sum;
      corrections[m][half] = correction;
    }
  }
}

template <int kM, int kN>
__device__ inline void scale_rows(Sums<kM, kN>& c, const float (&factors)[kM][2]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) c[m][n][e] *= factors[m][e / 2];
    }
  }
}

// factors: the divisors of o. `lse` (may be null) points to the first of the warp's rows, of which num_rows
// exist.
template <int kM>
__device__ inline void finish_rows(const RowState<kM>& state, float scale, float* lse, int num_rows,
                                   float (&factors)[kM][2]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      float sum = state.sum[m][half];
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 1);
      sum += __shfl_xor_sync(0xFFFFFFFFu, sum, 2);
      factors[m][half] = 1 / sum;
      const int row = 16 * m + 8 * half + lane / 4;
      if (lse != nullptr && lane % 4 == 0 && row < num_rows) {
        lse[row] = fmaf(state.maximum[m][half], scale, logf(sum));
      }
    }
  }
}

// s = exp(scale s - lse) = p^T. Rows are keys from `key` on, columns queries from `query` on; `all`: every
// query sees every key.
template <int kM, int kN>
__device__ inline void exponentiate_columns(Sums<kM, kN>& s, float scale_log2, const float* lse_log2,
                                            bool all, int distance, int window) {
  const int lane = threadIdx.x % 32;
  if (!all) {
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int n = 0; n < kN; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int d = distance + 8 * n + 2 * (lane % 4) + e % 2 - (16 * m + 8 * (e / 2) + lane / 4);
          if (d < 0 || d >= window) s[m][n][e] = -INFINITY;
        }
      }
    }
  }
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const float2 lse = *reinterpret_cast<const float2*>(lse_log2 + 8 * n + 2 * (lane % 4));
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        s[m][n][e] = fast_exp2(fmaf(s[m][n][e], scale_log2, -(e % 2 == 0 ? lse.x : lse.y)));
    }
  }
}

// dp = p (dp - delta) = ds^T.
template <int kM, int kN>
__device__ inline void differentiate_columns(Sums<kM, kN>& dp, const Sums<kM, kN>& p, const float* deltas) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kN; ++n) {
    const float2 delta = *reinterpret_cast<const float2*>(deltas + 8 * n + 2 * (lane % 4));
#pragma unroll
    for (int m = 0; m < kM; ++m) {
#pragma unroll
      for (int e = 0; e < 4; ++e) dp[m][n][e] = p[m][n][e] * (dp[m][n][e] - (e % 2 == 0 ? delta.x : delta.y));
    }
  }
}

// lse and delta of a query. Queries that do not exist weigh nothing.
struct QueryStatistics {
  float lse_log2, delta;

  __device__ void load(const AttentionGradients& gradients, int64_t at, bool exists) {
    lse_log2 = exists ? gradients.lse[at] * kLog2E : INFINITY;
    delta = exists ? gradients.delta[at] : 0.0f;
  }
};

// s = exp(scale s - lse) = p. Rows are queries, columns keys, `distance` the first query minus the first key.
template <int kM, int kN>
__device__ inline void exponentiate_rows(Sums<kM, kN>& s, float scale_log2,
                                         const QueryStatistics (&statistics)[kM][2], bool all, int distance,
                                         int window) {
  if (!all) mask_scores<kM, kN>(s, distance, window);
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e)
        s[m][n][e] = fast_exp2(fmaf(s[m][n][e], scale_log2, -statistics[m][e / 2].lse_log2));
    }
  }
}

// dp = p (dp - delta) = ds.
template <int kM, int kN>
__device__ inline void differentiate_rows(Sums<kM, kN>& dp, const Sums<kM, kN>& p,
                                          const QueryStatistics (&statistics)[kM][2]) {
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int n = 0; n < kN; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) dp[m][n][e] = p[m][n][e] * (dp[m][n][e] - statistics[m][e / 2].delta);
    }
  }
}

}  // namespace tessera::cuda
