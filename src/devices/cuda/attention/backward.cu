// Attention backward on the tensor cores: delta, then dk and dv by blocks of keys, then dq by blocks of
// queries. Scores are computed in both of the latter, seven products in all; no sum is shared between blocks.
#include <cmath>

#include "devices/cuda/attention/fragments.cuh"
#include "devices/cuda/attention/hopper/kernels.h"
#include "devices/cuda/attention/plain.h"

namespace tessera::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;

// delta [H, T]: half a warp per token and head.
__global__ void __launch_bounds__(kThreads)
    delta_kernel(const bf16* d_o, const bf16* o, int64_t num_tokens, int H, int E, float* delta) {
  constexpr int kLanes = 16;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / kLanes;  // of [T, H]
  const int column = threadIdx.x % kLanes * kVector<bf16>;
  const bool exists = row < num_tokens * H;
  float sum = 0;
  if (exists && column < E) {
    float a[kVector<bf16>], b[kVector<bf16>];
    load_vector(d_o + row * E + column, a);
    load_vector(o + row * E + column, b);
#pragma unroll
    for (int i = 0; i < kVector<bf16>; ++i) sum = fmaf(a[i], b[i], sum);
  }
#pragma unroll
  for (int lane = kLanes / 2; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, lane);
  if (exists && column == 0) delta[row % H * num_tokens + row / H] = sum;
}

// dk and dv. A warp has 16 kM keys: the sums of both (2 x 16 kM x kE), and kQueries columns of s^T = k q^T
// and of dp^T = v do^T, 192 registers in all. p^T and ds^T are left operands of the other two products as
// they are.
template <int kE>
struct KeyBlocks {
  static constexpr int kM = kE <= 64 ? 2 : 1;
  static constexpr int kKeys = 16 * kM * kWarps;
  static constexpr int kQueries = kE <= 64 ? 32 : 64;  // per step
  // Elements. k and v, then two stages of q and do, then of lse and delta.
  static constexpr int kKeyTile = kTileElements<kKeys, kE>, kQueryTile = kTileElements<kQueries, kE>;
  static constexpr size_t kSharedBytes = 2 * (2 * kKeyTile + 4 * kQueryTile) + sizeof(float) * 4 * kQueries;
};

// The step through the queries of all heads of a block of keys.
struct QueryStep {
  int head, query;

  __device__ void advance(int first, int end, int size) {
    query += size;
    if (query >= end) query = first, ++head;
  }
};

// One block: kKeys keys of one key-value head; the query heads that read it in order, and their queries in
// order.
template <int kE>
__global__ void __launch_bounds__(kThreads, 2)
    backward_kv_kernel(const AttentionProblem problem, const AttentionGradients gradients) {
  using Blocks = KeyBlocks<kE>;
  constexpr int kM = Blocks::kM, kKeys = Blocks::kKeys, kQueries = Blocks::kQueries,
                kTile = Blocks::kQueryTile;
  const int H = problem.H, G = problem.G, E = problem.E, g = blockIdx.x % G;
  const BlockRows rows =
      block_rows<kKeys>(problem.blocks[problem.num_blocks - 1 - static_cast<int>(blockIdx.x) / G]);
  if (!rows.exists) return;
  bf16* const k_tile = dynamic_shared<bf16>();
  bf16* const v_tile = k_tile + Blocks::kKeyTile;
  bf16* const q_tiles = v_tile + Blocks::kKeyTile;
  bf16* const do_tiles = q_tiles + 2 * kTile;
  float* const lse_tiles = reinterpret_cast<float*>(do_tiles + 2 * kTile);
  float* const delta_tiles = lse_tiles + 2 * kQueries;
  const int thread = threadIdx.x, warp_row = thread / 32 * 16 * kM, key = rows.first + warp_row;
  const int64_t stride = problem.Q, do_stride = static_cast<int64_t>(H) * E, T = problem.T;
  const bf16* const q = problem.q + rows.begin * stride;
  const bf16* const d_o = gradients.d_o + rows.begin * do_stride;
  const float scale_log2 = problem.scale * kLog2E;
  const int end = min(rows.length, rows.first + kKeys - 1 + problem.window);  // of the queries
  const int end_head = (g + 1) * (H / G);

  QueryStep step = {g * (H / G), rows.first};
  QueryStatistics statistics = {INFINITY, 0.0f};
  {
    const int64_t offset = (rows.begin + rows.first) * stride + g * E;
    start_tile<kKeys, kE, kThreads>(k_tile, problem.k + offset, stride, rows.length - rows.first, E);
    start_tile<kKeys, kE, kThreads>(v_tile, problem.v + offset, stride, rows.length - rows.first, E);
    start_tile<kQueries, kE, kThreads>(q_tiles, q + step.query * stride + step.head * E, stride,
                                       end - step.query, E);
    start_tile<kQueries, kE, kThreads>(do_tiles, d_o + step.query * do_stride + step.head * E, do_stride,
                                       end - step.query, E);
    commit_copies();
    if (thread < kQueries) {
      statistics.load(gradients, step.head * T + rows.begin + step.query + thread, step.query + thread < end);
      lse_tiles[thread] = statistics.lse_log2;
      delta_tiles[thread] = statistics.delta;
    }
  }
  Sums<kM, kE / 8> dk, dv;
  clear<kM, kE / 8>(dk);
  clear<kM, kE / 8>(dv);

  for (int stage = 0; step.head < end_head; stage ^= 1) {
    const int query = step.query, other = stage ^ 1;
    step.advance(rows.first, end, kQueries);
    wait_for_copies<0>();
    __syncthreads();  // this stage has arrived, and the other one is free
    if (step.head < end_head) {
      const int left = end - step.query;
      start_tile<kQueries, kE, kThreads>(q_tiles + other * kTile, q + step.query * stride + step.head * E,
                                         stride, left, E);
      start_tile<kQueries, kE, kThreads>(do_tiles + other * kTile,
                                         d_o + step.query * do_stride + step.head * E, do_stride, left, E);
      commit_copies();
      if (thread < kQueries)
        statistics.load(gradients, step.head * T + rows.begin + step.query + thread, thread < left);
    }
    // Does any of these queries see any of this warp's keys? And does each see all of them?
    if (query + kQueries > key && query - (key + 16 * kM - 1) < problem.window) {
      const bool all = query >= key + 16 * kM - 1 && query + kQueries - 1 - key < problem.window;
      Sums<kM, kQueries / 8> p, ds;
      multiply_transposed<kE, kM, kQueries / 8>(p, k_tile, warp_row, q_tiles + stage * kTile);
      exponentiate_columns<kM, kQueries / 8>(p, scale_log2, lse_tiles + stage * kQueries, all, query - key,
                                             problem.window);
      multiply_transposed<kE, kM, kQueries / 8>(ds, v_tile, warp_row, do_tiles + stage * kTile);
      differentiate_columns<kM, kQueries / 8>(ds, p, delta_tiles + stage * kQueries);
      multiply_sums<kE, kM, kQueries / 8>(dv, p, do_tiles + stage * kTile);
      multiply_sums<kE, kM, kQueries / 8>(dk, ds, q_tiles + stage * kTile);
    }
    if (thread < kQueries) {
      lse_tiles[other * kQueries + thread] = statistics.lse_log2;
      delta_tiles[other * kQueries + thread] = statistics.delta;
    }
  }

  float dk_factors[kM][2], dv_factors[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
    dk_factors[m][0] = dk_factors[m][1] = problem.scale;
    dv_factors[m][0] = dv_factors[m][1] = 1;
  }
  bf16* const to = gradients.dqkv + (rows.begin + rows.first) * stride;
  store_sums<kE, kM>(dk, dk_factors, k_tile, warp_row, rows.length - rows.first, E, to + (H + g) * E, stride);
  store_sums<kE, kM>(dv, dv_factors, v_tile, warp_row, rows.length - rows.first, E, to + (H + G + g) * E,
                     stride);
}

// dq. A warp has 32 queries, and kKeys columns of s and dp.
template <int kE>
struct QueryBlocks {
  static constexpr int kM = 2;
  static constexpr int kQueries = 16 * kM * kWarps;
  static constexpr int kKeys = kE <= 64 ? 64 : 32;  // per step
  static constexpr int kQueryTile = kTileElements<kQueries, kE>, kKeyTile = kTileElements<kKeys, kE>;
  static constexpr size_t kSharedBytes = 2 * (2 * kQueryTile + 4 * kKeyTile);
};

// One block: kQueries queries of one head; their keys in order.
template <int kE>
__global__ void __launch_bounds__(kThreads, 2)
    backward_q_kernel(const AttentionProblem problem, const AttentionGradients gradients) {
  using Blocks = QueryBlocks<kE>;
  constexpr int kM = Blocks::kM, kKeys = Blocks::kKeys, kQueries = Blocks::kQueries, kTile = Blocks::kKeyTile;
  const int H = problem.H, E = problem.E, h = blockIdx.x % H, g = h / (H / problem.G);
  const BlockRows rows = block_rows<kQueries>(problem.blocks[static_cast<int>(blockIdx.x) / H]);
  if (!rows.exists) return;
  bf16* const q_tile = dynamic_shared<bf16>();
  bf16* const do_tile = q_tile + Blocks::kQueryTile;
  bf16* const k_tiles = do_tile + Blocks::kQueryTile;
  bf16* const v_tiles = k_tiles + 2 * kTile;
  const int lane = threadIdx.x % 32, warp_row = static_cast<int>(threadIdx.x) / 32 * 16 * kM;
  const int query = rows.first + warp_row;
  const int64_t stride = problem.Q, do_stride = static_cast<int64_t>(H) * E, first = rows.begin + rows.first;
  const bf16* const k = problem.k + rows.begin * stride + g * E;
  const bf16* const v = problem.v + rows.begin * stride + g * E;
  const float scale_log2 = problem.scale * kLog2E;
  const int end = min(rows.first + kQueries, rows.length);  // of the keys
  const int begin = max(0, rows.first - problem.window + 1) / kKeys * kKeys;

  start_tile<kQueries, kE, kThreads>(q_tile, problem.q + first * stride + h * E, stride, end - rows.first, E);
  start_tile<kQueries, kE, kThreads>(do_tile, gradients.d_o + first * do_stride + h * E, do_stride,
                                     end - rows.first, E);
  start_tile<kKeys, kE, kThreads>(k_tiles, k + begin * stride, stride, end - begin, E);
  start_tile<kKeys, kE, kThreads>(v_tiles, v + begin * stride, stride, end - begin, E);
  commit_copies();
  QueryStatistics statistics[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = query + 16 * m + 8 * half + lane / 4;
      statistics[m][half].load(gradients, static_cast<int64_t>(h) * problem.T + rows.begin + row, row < end);
    }
  }
  Sums<kM, kE / 8> dq;
  clear<kM, kE / 8>(dq);

  int stage = 0;
  for (int key = begin; key < end; key += kKeys, stage ^= 1) {
    wait_for_copies<0>();
    __syncthreads();  // this stage has arrived, and the other one is free
    if (key + kKeys < end) {
      const int next = key + kKeys, other = (stage ^ 1) * kTile;
      start_tile<kKeys, kE, kThreads>(k_tiles + other, k + next * stride, stride, end - next, E);
      start_tile<kKeys, kE, kThreads>(v_tiles + other, v + next * stride, stride, end - next, E);
      commit_copies();
    }
    if (key > query + 16 * kM - 1 || query - (key + kKeys - 1) >= problem.window) continue;
    const bool all = key + kKeys - 1 <= query && query + 16 * kM - 1 - key < problem.window;
    Sums<kM, kKeys / 8> s, ds;
    multiply_transposed<kE, kM, kKeys / 8>(s, q_tile, warp_row, k_tiles + stage * kTile);
    multiply_transposed<kE, kM, kKeys / 8>(ds, do_tile, warp_row, v_tiles + stage * kTile);
    exponentiate_rows<kM, kKeys / 8>(s, scale_log2, statistics, all, query - key, problem.window);
    differentiate_rows<kM, kKeys / 8>(ds, s, statistics);
    multiply_sums<kE, kM, kKeys / 8>(dq, ds, k_tiles + stage * kTile);
  }
  float factors[kM][2];
#pragma unroll
  for (int m = 0; m < kM; ++m) factors[m][0] = factors[m][1] = problem.scale;
  store_sums<kE, kM>(dq, factors, q_tile, warp_row, end - rows.first, E,
                     gradients.dqkv + first * stride + h * E, stride);
}

template <int kE>
void launch_backward(const AttentionProblem& problem, const AttentionGradients& gradients,
                     CudaStream stream) {
  const auto num_blocks = static_cast<unsigned>(problem.num_blocks);
  launch(backward_kv_kernel<kE>, num_blocks * problem.G, kThreads, KeyBlocks<kE>::kSharedBytes, stream,
         problem, gradients);
  launch(backward_q_kernel<kE>, num_blocks * problem.H, kThreads, QueryBlocks<kE>::kSharedBytes, stream,
         problem, gradients);
}

}  // namespace

template <>
void attention_backward(const bf16* do_THE, const bf16* qkv_TQ, const bf16* o_THE, const float* lse_HT,
                        const AttentionShape& shape, const AttentionBatch& batch, bf16* dqkv_TQ,
                        void* scratch, CudaStream stream) {
  auto* const delta = static_cast<float*>(scratch);
  if (!takes_tensor_cores(shape)) {
    attention_delta(do_THE, o_THE, shape, batch.T, delta, stream);
    return plain_attention_backward(do_THE, qkv_TQ, lse_HT, delta, shape, batch, dqkv_TQ, stream);
  }
  const AttentionProblem problem = make_problem(qkv_TQ, shape, batch);
  launch(delta_kernel, static_cast<unsigned>(divide_up(batch.T * shape.num_heads, kThreads / 16)), kThreads,
         0, stream, do_THE, o_THE, batch.T, problem.H, problem.E, delta);
  if (hopper::takes(shape)) {
    return hopper::attention_backward(do_THE, qkv_TQ, lse_HT, delta, shape, batch, dqkv_TQ, stream);
  }
  const AttentionGradients gradients = {do_THE, lse_HT, delta, dqkv_TQ};
  if (problem.E <= 64) {
    launch_backward<64>(problem, gradients, stream);
  } else if (problem.E <= 96) {
    launch_backward<96>(problem, gradients, stream);
  } else {
    launch_backward<128>(problem, gradients, stream);
  }
}

template <>
void attention_backward(const float* do_THE, const float* qkv_TQ, const float* o_THE, const float* lse_HT,
                        const AttentionShape& shape, const AttentionBatch& batch, float* dqkv_TQ,
                        void* scratch, CudaStream stream) {
  auto* const delta = static_cast<float*>(scratch);
  attention_delta(do_THE, o_THE, shape, batch.T, delta, stream);
  plain_attention_backward(do_THE, qkv_TQ, lse_HT, delta, shape, batch, dqkv_TQ, stream);
}

}  // namespace tessera::cuda
