// Code shared by the attention kernels for Hopper: the shape of a thread block, and the store of results.
#pragma once

#include "devices/cuda/attention/hopper/async_copy.cuh"
#include "devices/cuda/attention/hopper/kernels.h"
#include "devices/cuda/attention/sums.cuh"
#include "devices/cuda/launch.cuh"

namespace tessera::cuda::hopper {

// The first warpgroup copies tiles (one warp of it), the other two compute, 64 rows of the block each.
inline constexpr int kWarpgroup = 128;
inline constexpr int kComputing = 2;
inline constexpr int kComputingWarps = 4 * kComputing;
inline constexpr int kThreads = kWarpgroup * (1 + kComputing);
inline constexpr int kRows = 64 * kComputing;
static_assert(kRows == kAttentionRows);
// 168 a thread at the start, 65,536 in all.
inline constexpr int kCopyingRegisters = 24;
inline constexpr int kComputingRegisters = 240;

// The block's dynamic shared memory from a multiple of 1,024 bytes on.
template <typename Shared>
inline constexpr size_t kSharedBytes = sizeof(Shared) + 1024;
template <typename Shared>
__device__ inline Shared& shared_memory() {
  unsigned char* const memory = dynamic_shared<unsigned char>();
  return *reinterpret_cast<Shared*>(memory + (1024 - shared_address(memory) % 1024) % 1024);
}

// The blocks of the grid go through `count` items, round by round, and in every other round backwards: items
// are sorted by the time they take.
struct Items {
  int count, round = 0;

  __device__ bool has_round() const { return round * static_cast<int>(gridDim.x) < count; }
  // The item of this block in this round; at least `count` if it has none.
  __device__ int item() const {
    const int grid = gridDim.x, block = blockIdx.x;
    return round * grid + (round % 2 == 0 ? block : grid - 1 - block);
  }
};

// An item: the queries of a block of rows and one head, and the keys that they see, kKeys at a time.
template <int kKeys>
struct Queries {
  BlockRows rows;
  int head, key_head;
  int begin, end;  // of the keys

  __device__ Queries(const AttentionProblem& problem, int item)
      : rows(block_rows<kRows>(problem.blocks[item / problem.H])),
        head(item % problem.H),
        key_head(head / (problem.H / problem.G)),
        begin(max(0, rows.first - problem.window + 1) / kKeys * kKeys),
        end(min(rows.first + kRows, rows.length)) {}
};

// The keys and values that an item's queries see pass through a ring of tiles, k and v of `shared`, each with
// barriers of its own: full once a tile has arrived, empty once every computing warp has read it.
template <int kStages, typename Shared>
__device__ inline void init_key_barriers(Shared& shared) {
  for (int stage = 0; stage < kStages; ++stage) {
    shared.k_full[stage].init(1);
    shared.v_full[stage].init(1);
    shared.k_empty[stage].init(kComputingWarps);
    shared.v_empty[stage].init(kComputingWarps);
  }
}
// One thread.
template <int kKeys, int kE, typename Shared, int kStages>
__device__ inline void copy_keys(const AttentionProblem& problem, const Queries<kKeys>& queries,
                                 const CUtensorMap& tiles, Shared& shared, RingPlace<kStages>& place) {
  const int first = queries.rows.begin;
  for (int key = queries.begin; key < queries.end; key += kKeys, place.advance()) {
    const int stage = place.slot;
    shared.k_empty[stage].wait(place.parity ^ 1);
    shared.k_full[stage].arrive_expecting(kTileBytes<kKeys, kE>);
    start_tile<kKeys, kE>(shared.k[stage], tiles, problem.H + queries.key_head, first + key,
                          shared.k_full[stage]);
    shared.v_empty[stage].wait(place.parity ^ 1);
    shared.v_full[stage].arrive_expecting(kTileBytes<kKeys, kE>);
    start_tile<kKeys, kE>(shared.v[stage], tiles, problem.H + problem.G + queries.key_head, first + key,
                          shared.v_full[stage]);
  }
}

// A warp's place in its block: of all threads that compute, and the first of its 16 rows.
__device__ inline int warpgroup_index() { return static_cast<int>(threadIdx.x) / kWarpgroup - 1; }
__device__ inline int warp_row() { return (static_cast<int>(threadIdx.x) - kWarpgroup) / 32 * 16; }

// Every thread of the warp has read what the barrier is for.
__device__ inline void arrive_as_warp(Barrier& barrier) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) barrier.arrive();
}

// All threads of this warpgroup.
__device__ inline void synchronize_warpgroup() {
  if (warpgroup_index() == 0) {
    asm volatile("bar.sync 1, %0;" ::"n"(kWarpgroup) : "memory");
  } else {
    asm volatile("bar.sync 2, %0;" ::"n"(kWarpgroup) : "memory");
  }
}

// Stores this warp's sums times the factors of their rows, rounded, to the first num_rows rows from `to` on
// (of the block's first row), by way of this warp's rows of the tile, which must not be in use.
template <int kN>
__device__ inline void store_rows(const Sums<1, kN>& c, const float (&factors)[1][2], bf16* tile,
                                  int num_rows, int E, bf16* to, int64_t stride) {
  const int lane = threadIdx.x % 32, first = warp_row();
#pragma unroll
  for (int n = 0; n < kN; ++n) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      bf16* const place = chunk_place<kRows>(tile, first + 8 * half + lane / 4, n) + 2 * (lane % 4);
      *reinterpret_cast<uint32_t*>(place) =
          pack_bf16(c[0][n][2 * half] * factors[0][half], c[0][n][2 * half + 1] * factors[0][half]);
    }
  }
  __syncwarp();
#pragma unroll 4
  for (int at = lane; at < 16 * kN; at += 32) {
    const int row = first + at / kN, chunk = at % kN;
    if (row >= num_rows || chunk * 8 >= E) continue;
    *reinterpret_cast<uint4*>(to + row * stride + chunk * 8) =
        *reinterpret_cast<const uint4*>(chunk_place<kRows>(tile, row, chunk));
  }
}

template <int kK, int kN>
__device__ inline void round_to_operands(uint32_t (&a)[kK][4], const Sums<1, kN>& c) {
  static_assert(kN == 2 * kK);
#pragma unroll
  for (int step = 0; step < kK; ++step) round_to_left<kN>(a[step], c[0], step);
}

}  // namespace tessera::cuda::hopper
