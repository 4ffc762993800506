// Attention backward, dk and dv: see kernels.h and backward.h.
#include "devices/cuda/attention/hopper/backward.h"
#include "devices/cuda/attention/hopper/tiles.cuh"

namespace tessera::cuda::hopper {
namespace {

constexpr int kStages = 3;
constexpr int kQueries = kBackwardStep;

template <int kE>
struct Shared {
  alignas(1024) bf16 k[kRows * kE];
  alignas(1024) bf16 v[kRows * kE];
  alignas(1024) bf16 q[kStages][kQueries * kE];
  alignas(1024) bf16 d_o[kStages][kQueries * kE];
  alignas(16) float lse_log2[kStages][kQueries];
  alignas(16) float delta[kStages][kQueries];
  Barrier keys_full, full[kStages], empty[kStages];

  __device__ void init() {
    keys_full.init(1);
    for (int stage = 0; stage < kStages; ++stage) {
      full[stage].init(1);
      empty[stage].init(kComputingWarps);
    }
    publish_barriers();
  }
};

// The item of this block of threads: keys of a block of rows and one key-value head, the query heads that
// read it in order, and their queries in order, kQueries at a time.
struct Keys {
  BlockRows rows;
  int key_head, first_head, end_head;
  int end;  // of the queries

  __device__ Keys(const AttentionProblem& problem, int item)
      : rows(block_rows<kRows>(problem.blocks[problem.num_blocks - 1 - item / problem.G])),
        key_head(item % problem.G),
        first_head(key_head * (problem.H / problem.G)),
        end_head(first_head + problem.H / problem.G),
        end(min(rows.length, rows.first + kRows - 1 + problem.window)) {}
};

// A step; there is none left at the end of the heads.
struct Step {
  int head, query;

  __device__ void advance(const Keys& keys) {
    query += kQueries;
    if (query >= keys.end) query = keys.rows.first, ++head;
  }
};

// One warp: its lanes fetch lse and delta, the first one starts the copies.
template <int kE>
__device__ void copy_tiles(const AttentionProblem& problem, const AttentionGradients& gradients,
                           const HeadTiles& tiles, const Keys& keys, Shared<kE>& shared) {
  static_assert(kQueries == 64);
  const int lane = threadIdx.x, first = keys.rows.begin;
  if (lane == 0) {
    shared.keys_full.arrive_expecting(2 * kTileBytes<kRows, kE>);
    start_tile<kRows, kE>(shared.k, tiles.wide, problem.H + keys.key_head, first + keys.rows.first,
                          shared.keys_full);
    start_tile<kRows, kE>(shared.v, tiles.wide, problem.H + problem.G + keys.key_head,
                          first + keys.rows.first, shared.keys_full);
  }
  RingPlace<kStages> place;
  for (Step step = {keys.first_head, keys.rows.first}; step.head < keys.end_head;
       step.advance(keys), place.advance()) {
    const int64_t at = static_cast<int64_t>(step.head) * problem.T + first + step.query;
    QueryStatistics low, high;
    low.load(gradients, at + lane, step.query + lane < keys.end);
    high.load(gradients, at + 32 + lane, step.query + 32 + lane < keys.end);
    shared.empty[place.slot].wait(place.parity ^ 1);
    shared.lse_log2[place.slot][lane] = low.lse_log2;
    shared.delta[place.slot][lane] = low.delta;
    shared.lse_log2[place.slot][32 + lane] = high.lse_log2;
    shared.delta[place.slot][32 + lane] = high.delta;
    __syncwarp();
    if (lane == 0) {
      Barrier& full = shared.full[place.slot];
      full.arrive_expecting(2 * kTileBytes<kQueries, kE>);
      start_tile<kQueries, kE>(shared.q[place.slot], tiles.narrow, step.head, first + step.query, full);
      start_tile<kQueries, kE>(shared.d_o[place.slot], tiles.narrow_d_o, step.head, first + step.query, full);
    }
  }
}

// One warpgroup: 64 keys. s^T = k q^T and dp^T = v do^T are in registers as p^T and ds^T are read. Products
// are under way whenever probabilities and derivatives are computed: dk of the step before and dp, then dv.
template <int kE>
__device__ void compute(const AttentionProblem& problem, const AttentionGradients& gradients,
                        const Keys& keys, Shared<kE>& shared) {
  constexpr int kN = kQueries / 8;
  const int group_row = 64 * warpgroup_index();
  const float scale_log2 = problem.scale * kLog2E;
  const uint64_t group_offset = (group_row * kRowBytes) >> 4;
  const uint64_t k = operand(shared.k, kRows * kRowBytes) + group_offset;
  const uint64_t v = operand(shared.v, kRows * kRowBytes) + group_offset;
  const uint64_t q = operand(shared.q[0], kQueries * kRowBytes),
                 d_o = operand(shared.d_o[0], kQueries * kRowBytes);
  constexpr uint64_t kNextTile = kTileBytes<kQueries, kE> / 16;
  const int group_key = keys.rows.first + group_row, key = keys.rows.first + warp_row();
  Sums<1, kE / 8> dk, dv;
  clear<1, kE / 8>(dk);
  clear<1, kE / 8>(dv);
  Sums<1, kN> p, ds;
  uint32_t p_operands[kN / 2][4], ds_operands[kN / 2][4];
  Step step = {keys.first_head, keys.rows.first};
  RingPlace<kStages> place;
  const auto start_s = [&] {
    shared.full[place.slot].wait(place.parity);
    settle(p[0]);
    start_products();
    multiply_transposed<kE, kRows>(p[0], k, q + place.slot * kNextTile);
    commit_products();
  };
  const auto start_dp = [&] {
    settle(ds[0]);
    start_products();
    multiply_transposed<kE, kRows>(ds[0], v, d_o + place.slot * kNextTile);
    commit_products();
  };
  const auto exponentiate = [&] {
    settle(p[0]);
    const bool all = step.query >= group_key + 63 && step.query + kQueries - 1 - group_key < problem.window;
    exponentiate_columns<1, kN>(p, scale_log2, shared.lse_log2[place.slot], all, step.query - key,
                                problem.window);
  };
  // Adds to dv while ds is computed; dp must be under way, and nothing else.
  const auto add_dv = [&] {
    round_to_operands<kN / 2, kN>(p_operands, p);
    settle(p_operands);
    settle(dv[0]);
    start_products();
    multiply_add<kN / 2>(dv[0], p_operands, d_o + place.slot * kNextTile);
    commit_products();
    wait_for_products<1>();
    settle(ds[0]);
    differentiate_columns<1, kN>(ds, p, shared.delta[place.slot]);
    wait_for_products<0>();
    settle(dv[0]);
    settle(p_operands);
    round_to_operands<kN / 2, kN>(ds_operands, ds);
  };
  const auto add_dk = [&] {
    settle(dk[0]);
    settle(ds_operands);
    start_products();
    multiply_add<kN / 2>(dk[0], ds_operands, q + place.slot * kNextTile);
    commit_products();
    wait_for_products<0>();
    settle(dk[0]);
    settle(ds_operands);
    arrive_as_warp(shared.empty[place.slot]);
  };

  shared.keys_full.wait(0);
  for (; step.head < keys.end_head; step.advance(keys), place.advance()) {
    start_s();
    start_dp();
    wait_for_products<1>();
    exponentiate();
    add_dv();
    add_dk();
  }

  const float dk_factors[1][2] = {{problem.scale, problem.scale}}, dv_factors[1][2] = {{1, 1}};
  bf16* const to = gradients.dqkv + (keys.rows.begin + keys.rows.first) * problem.Q;
  const int num_rows = keys.rows.length - keys.rows.first, H = problem.H, G = problem.G, E = problem.E;
  synchronize_warpgroup();  // the products of its other warps no longer read this warp's keys
  store_rows<kE / 8>(dk, dk_factors, shared.k, num_rows, E, to + (H + keys.key_head) * E, problem.Q);
  store_rows<kE / 8>(dv, dv_factors, shared.v, num_rows, E, to + (H + G + keys.key_head) * E, problem.Q);
}

template <int kE>
__global__ void __launch_bounds__(kThreads, 1)
    backward_kv_kernel(const AttentionProblem problem, const AttentionGradients gradients,
                       const __grid_constant__ HeadTiles tiles) {
  auto& shared = shared_memory<Shared<kE>>();
  if (threadIdx.x == 0) shared.init();
  __syncthreads();
  const Keys keys(problem, blockIdx.x);
  if (threadIdx.x < kWarpgroup) {
    give_up_registers<kCopyingRegisters>();
    if (threadIdx.x < 32) copy_tiles<kE>(problem, gradients, tiles, keys, shared);
  } else {
    take_registers<kComputingRegisters>();
    compute<kE>(problem, gradients, keys, shared);
  }
}

}  // namespace

void attention_backward_kv(const AttentionProblem& problem, const AttentionGradients& gradients,
                           const HeadTiles& tiles, CudaStream stream) {
  const auto grid = static_cast<unsigned>(problem.num_blocks) * problem.G;
  if (problem.E <= 64) {
    launch(backward_kv_kernel<64>, grid, kThreads, kSharedBytes<Shared<64>>, stream, problem, gradients,
           tiles);
  } else {
    launch(backward_kv_kernel<128>, grid, kThreads, kSharedBytes<Shared<128>>, stream, problem, gradients,
           tiles);
  }
}

}  // namespace tessera::cuda::hopper
