// Attention forward on the tensor cores.
#include <algorithm>
#include <cmath>

#include "devices/cuda/attention/fragments.cuh"
#include "devices/cuda/attention/hopper/kernels.h"
#include "devices/cuda/attention/plain.h"

namespace tessera::cuda {
namespace {

// Four warps of 32 queries each: every fragment of k and v that a warp loads is used twice. The sums of o (32
// x kE) and of the scores (32 x 64) take 192 registers with kE = 128; two blocks share a multiprocessor.
constexpr int kWarps = 4;
constexpr int kThreads = 32 * kWarps;
constexpr int kM = 2;
constexpr int kQueries = 16 * kM * kWarps;
constexpr int kKeys = 64;

// q, and two stages of k and v.
template <int kE>
constexpr size_t kSharedBytes = sizeof(bf16) * (kTileElements<kQueries, kE> + 4 * kTileElements<kKeys, kE>);

// o / sum, and lse, to memory; through the warp's own rows of the tile of queries.
template <int kE>
__device__ inline void finish(const AttentionProblem& problem, const BlockRows& rows, int h,
                              const RowState<kM>& state, const Sums<kM, kE / 8>& o, bf16* q_tile, bf16* to,
                              float* lse) {
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16 * kM;
  const int64_t first = rows.begin + rows.first, stride = static_cast<int64_t>(problem.H) * problem.E;
  float factors[kM][2];
  float* const warp_lse =
      lse == nullptr ? nullptr : lse + static_cast<int64_t>(h) * problem.T + first + warp_row;
  finish_rows<kM>(state, problem.scale, warp_lse, rows.length - rows.first - warp_row, factors);
  store_sums<kE, kM>(o, factors, q_tile, warp_row, rows.length - rows.first, problem.E,
                     to + first * stride + h * problem.E, stride);
}

// One block: kQueries queries of one head; keys in order, kKeys at a time.
template <int kE>
__global__ void __launch_bounds__(kThreads, 2)
    forward_kernel(const AttentionProblem problem, bf16* o_THE, float* lse_HT) {
  constexpr int kTile = kTileElements<kKeys, kE>;
  const int H = problem.H, E = problem.E, h = blockIdx.x % H, g = h / (H / problem.G);
  const BlockRows rows = block_rows<kQueries>(problem.blocks[static_cast<int>(blockIdx.x) / H]);
  if (!rows.exists) return;
  bf16* const q_tile = dynamic_shared<bf16>();
  bf16* const k_tiles = q_tile + kTileElements<kQueries, kE>;
  bf16* const v_tiles = k_tiles + 2 * kTile;
  const int64_t Q = problem.Q;
  const bf16* const k = problem.k + rows.begin * Q + g * E;
  const bf16* const v = problem.v + rows.begin * Q + g * E;
  const int end = min(rows.first + kQueries, rows.length);  // of the keys
  const int begin = max(0, rows.first - problem.window + 1) / kKeys * kKeys;
  const int warp_row = static_cast<int>(threadIdx.x) / 32 * 16 * kM, query = rows.first + warp_row;
  const float scale_log2 = problem.scale * kLog2E;

  start_tile<kQueries, kE, kThreads>(q_tile, problem.q + (rows.begin + rows.first) * Q + h * E, Q,
                                     end - rows.first, E);
  start_tile<kKeys, kE, kThreads>(k_tiles, k + begin * Q, Q, end - begin, E);
  start_tile<kKeys, kE, kThreads>(v_tiles, v + begin * Q, Q, end - begin, E);
  commit_copies();
  Sums<kM, kE / 8> o;
  clear<kM, kE / 8>(o);
  RowState<kM> state;

  int stage = 0;
  for (int key = begin; key < end; key += kKeys, stage ^= 1) {
    wait_for_copies<0>();
    __syncthreads();  // this stage has arrived, and the other one is free
    if (key + kKeys < end) {
      const int next = key + kKeys, other = (stage ^ 1) * kTile;
      start_tile<kKeys, kE, kThreads>(k_tiles + other, k + next * Q, Q, end - next, E);
      start_tile<kKeys, kE, kThreads>(v_tiles + other, v + next * Q, Q, end - next, E);
      commit_copies();
    }
    // Does any row of this warp see any of these keys? And does every row see all of them?
    if (key > query + 16 * kM - 1 || query - (key + kKeys - 1) >= problem.window) continue;
    const bool all = key + kKeys - 1 <= query && query + 16 * kM - 1 - key < problem.window;
    Sums<kM, kKeys / 8> scores;
    multiply_transposed<kE, kM, kKeys / 8>(scores, q_tile, warp_row, k_tiles + stage * kTile);
    if (!all) mask_scores<kM, kKeys / 8>(scores, query - key, problem.window);
    float corrections[kM][2];
    exponentiate<kM, kKeys / 8>(scores, scale_log2, state, corrections);
    scale_rows<kM, kE / 8>(o, corrections);
    multiply_sums<kE, kM, kKeys / 8>(o, scores, v_tiles + stage * kTile);
  }
  finish<kE>(problem, rows, h, state, o, q_tile, o_THE, lse_HT);
}

template <int kE>
void launch_forward(const AttentionProblem& problem, bf16* o, float* lse, CudaStream stream) {
  launch(forward_kernel<kE>, static_cast<unsigned>(problem.num_blocks) * problem.H, kThreads,
         kSharedBytes<kE>, stream, problem, o, lse);
}

}  // namespace

std::vector<AttentionBlock> attention_blocks(std::span<const int32_t> cu_seqlens, int rows) {
  std::vector<AttentionBlock> blocks;
  for (size_t s = 0; s + 1 < cu_seqlens.size(); ++s) {
    const int32_t begin = cu_seqlens[s], end = cu_seqlens[s + 1];
    for (int32_t row = 0; row < end - begin; row += rows) blocks.push_back({begin, end, row});
  }
  std::stable_sort(blocks.begin(), blocks.end(), [](const AttentionBlock& a, const AttentionBlock& b) {
    return a.first_row > b.first_row;
  });
  return blocks;
}

template <>
int attention_rows<bf16>(const AttentionShape& shape) {
  return hopper::takes(shape) ? hopper::kAttentionRows : kAttentionRows;
}
template <>
int attention_rows<float>(const AttentionShape& /*shape*/) {
  return kAttentionRows;
}

template <>
void attention(const bf16* qkv_TQ, const AttentionShape& shape, const AttentionBatch& batch, bf16* o_THE,
               float* lse_HT, CudaStream stream) {
  if (hopper::takes(shape)) return hopper::attention(qkv_TQ, shape, batch, o_THE, lse_HT, stream);
  if (!takes_tensor_cores(shape)) return plain_attention(qkv_TQ, shape, batch, o_THE, lse_HT, stream);
  const AttentionProblem problem = make_problem(qkv_TQ, shape, batch);
  if (problem.E <= 64) {
    launch_forward<64>(problem, o_THE, lse_HT, stream);
  } else if (problem.E <= 96) {
    launch_forward<96>(problem, o_THE, lse_HT, stream);
  } else {
    launch_forward<128>(problem, o_THE, lse_HT, stream);
  }
}

template <>
void attention(const float* qkv_TQ, const AttentionShape& shape, const AttentionBatch& batch, float* o_THE,
               float* lse_HT, CudaStream stream) {
  plain_attention(qkv_TQ, shape, batch, o_THE, lse_HT, stream);
}

}  // namespace tessera::cuda
