// Attention forward: see kernels.h.
#include <algorithm>

#include "devices/cuda/attention/hopper/tensor_map.h"
#include "devices/cuda/attention/hopper/tiles.cuh"

namespace tessera::cuda::hopper {
namespace {

constexpr int kKeys = 128;  // in a step
constexpr int kStages = 2;

template <int kE>
struct Shared {
  alignas(1024) bf16 q[kRows * kE];
  alignas(1024) bf16 k[kStages][kKeys * kE];
  alignas(1024) bf16 v[kStages][kKeys * kE];
  Barrier q_full, q_empty, k_full[kStages], k_empty[kStages], v_full[kStages], v_empty[kStages];

  __device__ void init() {
    q_full.init(1);
    q_empty.init(kComputingWarps);
    init_key_barriers<kStages>(*this);
    publish_barriers();
  }
};

// One thread.
template <int kE>
__device__ void copy_tiles(const AttentionProblem& problem, const CUtensorMap& tiles, Shared<kE>& shared) {
  RingPlace<kStages> place;
  int q_parity = 1;
  for (Items items = {problem.num_blocks * problem.H}; items.has_round(); ++items.round) {
    const int item = items.item();
    if (item >= items.count) continue;
    const Queries<kKeys> queries(problem, item);
    shared.q_empty.wait(q_parity);
    q_parity ^= 1;
    shared.q_full.arrive_expecting(kTileBytes<kRows, kE>);
    start_tile<kRows, kE>(shared.q, tiles, queries.head, queries.rows.begin + queries.rows.first,
                          shared.q_full);
    copy_keys<kKeys, kE>(problem, queries, tiles, shared, place);
  }
}

// Divides the sums of an item's queries by those of their probabilities, stores them, and is done with the
// queries' memory.
template <int kE>
__device__ inline void store_item(const AttentionProblem& problem, const Queries<kKeys>& queries,
                                  RowState<1>& state, Sums<1, kE / 8>& o, Shared<kE>& shared, bf16* o_THE,
                                  float* lse_HT) {
  const int64_t first = queries.rows.begin + queries.rows.first,
                stride = static_cast<int64_t>(problem.H) * problem.E;
  const int num_rows = queries.rows.length - queries.rows.first;
  float factors[1][2];
  float* const lse =
      lse_HT == nullptr ? nullptr : lse_HT + static_cast<int64_t>(queries.head) * problem.T + first;
  finish_rows<1>(state, problem.scale, lse == nullptr ? nullptr : lse + warp_row(), num_rows - warp_row(),
                 factors);
  synchronize_warpgroup();  // the products of its other warps no longer read this warp's queries
  store_rows<kE / 8>(o, factors, shared.q, num_rows, problem.E,
                     o_THE + first * stride + queries.head * problem.E, stride);
  publish_to_copies();
  arrive_as_warp(shared.q_empty);
}

// One warpgroup: 64 queries of each item. The scores of the next keys are computed while the last ones become
// probabilities and multiply v.
template <int kE>
__device__ void compute(const AttentionProblem& problem, bf16* o_THE, float* lse_HT, Shared<kE>& shared) {
  constexpr int kN = kKeys / 8;
  const int group_row = 64 * warpgroup_index();
  const float scale_log2 = problem.scale * kLog2E;
  const uint64_t q = operand(shared.q, kRows * kRowBytes) + ((group_row * kRowBytes) >> 4);
  const uint64_t k = operand(shared.k[0], kKeys * kRowBytes), v = operand(shared.v[0], kKeys * kRowBytes);
  constexpr uint64_t kNextTile = kTileBytes<kKeys, kE> / 16;
  RingPlace<kStages> place;
  int q_parity = 0;
  for (Items items = {problem.num_blocks * problem.H}; items.has_round(); ++items.round) {
    const int item = items.item();
    if (item >= items.count) continue;
    const Queries<kKeys> queries(problem, item);
    // For this warp's rows. `all` is decided for the whole warpgroup.
    const int group_query = queries.rows.first + group_row, query = queries.rows.first + warp_row();
    const auto mask = [&](Sums<1, kN>& scores, int key) {
      const bool all = key + kKeys - 1 <= group_query && group_query + 63 - key < problem.window;
      if (!all) mask_scores<1, kN>(scores, query - key, problem.window);
    };
    RowState<1> state;
    Sums<1, kE / 8> o;
    clear<1, kE / 8>(o);
    Sums<1, kN> scores;
    float corrections[1][2];
    uint32_t p[kN / 2][4];

    shared.q_full.wait(q_parity);
    q_parity ^= 1;
    shared.k_full[place.slot].wait(place.parity);
    settle(scores[0]);
    start_products();
    multiply_transposed<kE, kRows>(scores[0], q, k + place.slot * kNextTile);
    commit_products();
    wait_for_products<0>();
    settle(scores[0]);
    arrive_as_warp(shared.k_empty[place.slot]);
    mask(scores, queries.begin);
    exponentiate<1, kN>(scores, scale_log2, state, corrections);
    round_to_operands<kN / 2, kN>(p, scores);

    for (int key = queries.begin + kKeys; key < queries.end; key += kKeys) {
      const RingPlace<kStages> last = place;
      place.advance();
      shared.k_full[place.slot].wait(place.parity);
      settle(scores[0]);
      settle(o[0]);
      settle(p);
      start_products();
      multiply_transposed<kE, kRows>(scores[0], q, k + place.slot * kNextTile);
      commit_products();
      shared.v_full[last.slot].wait(last.parity);
      start_products();
      multiply_add<kN / 2>(o[0], p, v + last.slot * kNextTile);
      commit_products();
      wait_for_products<1>();
      settle(scores[0]);
      arrive_as_warp(shared.k_empty[place.slot]);
      mask(scores, key);
      exponentiate<1, kN>(scores, scale_log2, state, corrections);
      wait_for_products<0>();
      settle(o[0]);
      settle(p);
      arrive_as_warp(shared.v_empty[last.slot]);
      scale_rows<1, kE / 8>(o, corrections);
      round_to_operands<kN / 2, kN>(p, scores);
    }
    shared.v_full[place.slot].wait(place.parity);
    settle(o[0]);
    settle(p);
    start_products();
    multiply_add<kN / 2>(o[0], p, v + place.slot * kNextTile);
    commit_products();
    wait_for_products<0>();
    settle(o[0]);
    arrive_as_warp(shared.v_empty[place.slot]);
    place.advance();

    store_item<kE>(problem, queries, state, o, shared, o_THE, lse_HT);
  }
}

template <int kE>
__global__ void __launch_bounds__(kThreads, 1)
    forward_kernel(const AttentionProblem problem, const __grid_constant__ CUtensorMap tiles, bf16* o_THE,
                   float* lse_HT) {
  auto& shared = shared_memory<Shared<kE>>();
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  if (threadIdx.x < kWarpgroup) {
    give_up_registers<kCopyingRegisters>();
    if (threadIdx.x == 0) copy_tiles<kE>(problem, tiles, shared);
  } else {
    take_registers<kComputingRegisters>();
    compute<kE>(problem, o_THE, lse_HT, shared);
  }
}

template <int kE>
void launch_forward(const AttentionProblem& problem, const CUtensorMap& tiles, bf16* o, float* lse,
                    CudaStream stream) {
  const int grid = std::min(num_multiprocessors(), problem.num_blocks * problem.H);
  launch(forward_kernel<kE>, static_cast<unsigned>(grid), kThreads, kSharedBytes<Shared<kE>>, stream, problem,
         tiles, o, lse);
}

}  // namespace

void attention(const bf16* qkv_TQ, const AttentionShape& shape, const AttentionBatch& batch, bf16* o_THE,
               float* lse_HT, CudaStream stream) {
  if (batch.num_blocks == 0) return;
  const AttentionProblem problem = make_problem(qkv_TQ, shape, batch);
  const CUtensorMap tiles =
      head_tiles(qkv_TQ, problem.E, problem.H + 2 * problem.G, batch.T, problem.Q, kRows);
  static_assert(kRows == kKeys);
  problem.E <= 64 ? launch_forward<64>(problem, tiles, o_THE, lse_HT, stream)
                  : launch_forward<128>(problem, tiles, o_THE, lse_HT, stream);
}

}  // namespace tessera::cuda::hopper
