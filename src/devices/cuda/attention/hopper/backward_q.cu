// Attention backward, dq: see kernels.h and backward.h.
#include <algorithm>

#include "devices/cuda/attention/hopper/backward.h"
#include "devices/cuda/attention/hopper/tensor_map.h"
#include "devices/cuda/attention/hopper/tiles.cuh"

namespace tessera::cuda::hopper {
namespace {

constexpr int kKeys = kBackwardStep;
constexpr int kStages = 3;

template <int kE>
struct Shared {
  alignas(1024) bf16 q[kRows * kE];
  alignas(1024) bf16 d_o[kRows * kE];
  alignas(1024) bf16 k[kStages][kKeys * kE];
  alignas(1024) bf16 v[kStages][kKeys * kE];
  Barrier queries_full, queries_empty, k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];

  __device__ void init() {
    queries_full.init(1);
    queries_empty.init(kComputingWarps);
    init_key_barriers<kStages>(*this);
    publish_barriers();
  }
};

// One thread.
template <int kE>
__device__ void copy_tiles(const AttentionProblem& problem, const HeadTiles& tiles, Shared<kE>& shared) {
  RingPlace<kStages> place;
  int queries_parity = 1;
  for (Items items = {problem.num_blocks * problem.H}; items.has_round(); ++items.round) {
    const int item = items.item();
    if (item >= items.count) continue;
    const Queries<kKeys> queries(problem, item);
    const int row = queries.rows.begin + queries.rows.first;
    shared.queries_empty.wait(queries_parity);
    queries_parity ^= 1;
    shared.queries_full.arrive_expecting(2 * kTileBytes<kRows, kE>);
    start_tile<kRows, kE>(shared.q, tiles.wide, queries.head, row, shared.queries_full);
    start_tile<kRows, kE>(shared.d_o, tiles.wide_d_o, queries.head, row, shared.queries_full);
    copy_keys<kKeys, kE>(problem, queries, tiles.narrow, shared, place);
  }
}

// One warpgroup: 64 queries of each item. ds is in registers as it is read; its product with k is added to dq
// while the next scores are computed.
template <int kE>
__device__ void compute(const AttentionProblem& problem, const AttentionGradients& gradients,
                        Shared<kE>& shared) {
  constexpr int kN = kKeys / 8;
  const int group_row = 64 * warpgroup_index(), lane = threadIdx.x % 32;
  const float scale_log2 = problem.scale * kLog2E;
  const uint64_t group_offset = (group_row * kRowBytes) >> 4;
  const uint64_t q = operand(shared.q, kRows * kRowBytes) + group_offset;
  const uint64_t d_o = operand(shared.d_o, kRows * kRowBytes) + group_offset;
  const uint64_t k = operand(shared.k[0], kKeys * kRowBytes), v = operand(shared.v[0], kKeys * kRowBytes);
  constexpr uint64_t kNextTile = kTileBytes<kKeys, kE> / 16;
  RingPlace<kStages> place;
  int queries_parity = 0;
  for (Items items = {problem.num_blocks * problem.H}; items.has_round(); ++items.round) {
    const int item = items.item();
    if (item >= items.count) continue;
    const Queries<kKeys> queries(problem, item);
    const int group_query = queries.rows.first + group_row, query = queries.rows.first + warp_row();
    QueryStatistics statistics[1][2];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = query + 8 * half + lane / 4;
      statistics[0][half].load(gradients,
                               static_cast<int64_t>(queries.head) * problem.T + queries.rows.begin + row,
                               row < queries.rows.length);
    }
    Sums<1, kE / 8> dq;
    clear<1, kE / 8>(dq);
    Sums<1, kN> p, ds;
    uint32_t operands[kN / 2][4];
    const auto start_scores = [&] {
      shared.k_full[place.slot].wait(place.parity);
      settle(p[0]);
      start_products();
      multiply_transposed<kE, kRows>(p[0], q, k + place.slot * kNextTile);
      commit_products();
      shared.v_full[place.slot].wait(place.parity);
      settle(ds[0]);
      start_products();
      multiply_transposed<kE, kRows>(ds[0], d_o, v + place.slot * kNextTile);
      commit_products();
    };
    const auto exponentiate = [&](int key) {
      settle(p[0]);
      const bool all = key + kKeys - 1 <= group_query && group_query + 63 - key < problem.window;
      exponentiate_rows<1, kN>(p, scale_log2, statistics, all, query - key, problem.window);
    };
    const auto differentiate = [&] {
      settle(ds[0]);
      arrive_as_warp(shared.v_empty[place.slot]);
      differentiate_rows<1, kN>(ds, p, statistics);
    };
    const auto start_sum = [&](int slot) {
      settle(dq[0]);
      settle(operands);
      start_products();
      multiply_add<kN / 2>(dq[0], operands, k + slot * kNextTile);
      commit_products();
    };
    const auto finish_sum = [&](int slot) {
      wait_for_products<0>();
      settle(dq[0]);
      settle(operands);
      arrive_as_warp(shared.k_empty[slot]);
    };

    shared.queries_full.wait(queries_parity);
    queries_parity ^= 1;
    start_scores();
    wait_for_products<1>();
    exponentiate(queries.begin);
    wait_for_products<0>();
    differentiate();
    round_to_operands<kN / 2, kN>(operands, ds);
    for (int key = queries.begin + kKeys; key < queries.end; key += kKeys) {
      const int last = place.slot;
      place.advance();
      start_scores();
      start_sum(last);
      wait_for_products<2>();
      exponentiate(key);
      wait_for_products<1>();
      differentiate();
      finish_sum(last);
      round_to_operands<kN / 2, kN>(operands, ds);
    }
    start_sum(place.slot);
    finish_sum(place.slot);
    place.advance();

    const float factors[1][2] = {{problem.scale, problem.scale}};
    bf16* const to = gradients.dqkv + (queries.rows.begin + queries.rows.first) * problem.Q;
    synchronize_warpgroup();  // the products of its other warps no longer read this warp's queries
    store_rows<kE / 8>(dq, factors, shared.q, queries.rows.length - queries.rows.first, problem.E,
                       to + queries.head * problem.E, problem.Q);
    publish_to_copies();
    arrive_as_warp(shared.queries_empty);
  }
}

template <int kE>
__global__ void __launch_bounds__(kThreads, 1)
    backward_q_kernel(const AttentionProblem problem, const AttentionGradients gradients,
                      const __grid_constant__ HeadTiles tiles) {
  auto& shared = shared_memory<Shared<kE>>();
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_up_registers<kCopyingRegisters>();
    if (threadIdx.x == 0) copy_tiles<kE>(problem, tiles, shared);
  } else {
    take_registers<kComputingRegisters>();
    compute<kE>(problem, gradients, shared);
  }
}

}  // namespace

void attention_backward_q(const AttentionProblem& problem, const AttentionGradients& gradients,
                          const HeadTiles& tiles, CudaStream stream) {
  const int grid = std::min(num_multiprocessors(), problem.num_blocks * problem.H);
  if (problem.E <= 64) {
    launch(backward_q_kernel<64>, static_cast<unsigned>(grid), kThreads, kSharedBytes<Shared<64>>, stream,
           problem, gradients, tiles);
  } else {
    launch(backward_q_kernel<128>, static_cast<unsigned>(grid), kThreads, kSharedBytes<Shared<128>>, stream,
           problem, gradients, tiles);
  }
}

void attention_backward(const bf16* do_THE, const bf16* qkv_TQ, const float* lse_HT, const float* delta_HT,
                        const AttentionShape& shape, const AttentionBatch& batch, bf16* dqkv_TQ,
                        CudaStream stream) {
  if (batch.num_blocks == 0) return;
  const AttentionProblem problem = make_problem(qkv_TQ, shape, batch);
  const AttentionGradients gradients = {do_THE, lse_HT, delta_HT, dqkv_TQ};
  const int64_t E = problem.E, H = problem.H, heads = H + 2 * problem.G;
  const HeadTiles tiles = {head_tiles(qkv_TQ, E, heads, batch.T, problem.Q, kRows),
                           head_tiles(qkv_TQ, E, heads, batch.T, problem.Q, kBackwardStep),
                           head_tiles(do_THE, E, H, batch.T, H * E, kRows),
                           head_tiles(do_THE, E, H, batch.T, H * E, kBackwardStep)};
  attention_backward_kv(problem, gradients, tiles, stream);
  attention_backward_q(problem, gradients, tiles, stream);
}

}  // namespace tessera::cuda::hopper
