// Attention (kernels/attention/attention.h) on a card. Pointers are device pointers unless their names say
// host.
//
// BF16 with heads of up to 128, a multiple of 8, goes to the tensor cores, tile by tile (Dao,
// FlashAttention-2, 2023): p and ds are rounded to bf16 before their products, as in the processor's AMX
// implementation. Backward computes the scores twice, for dk and dv by blocks of keys, over all query heads
// of a key-value head, and for dq by blocks of queries, so that no two blocks add to the same element.
// Hopper has kernels of its own for this (hopper/kernels.h). Everything else is computed in float32, a warp
// per query or key.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/float_types.h"
#include "devices/cuda/cuda_stream.h"
#include "kernels/attention/attention_shape.h"

namespace tessera::cuda {

// Rows of a sequence: tokens [begin, end). A block handles up to attention_rows() of them from first_row on.
struct AttentionBlock {
  int32_t begin, end, first_row;
};
// The number of rows per block of attention<A>() and attention_backward<A>() on the current card.
template <typename A>
int attention_rows(const AttentionShape& shape);
inline constexpr int kAttentionRows = 64;  // except on Hopper
// Every block of the sequences, the one with the most keys first. cu_seqlens is the host's.
std::vector<AttentionBlock> attention_blocks(std::span<const int32_t> cu_seqlens, int rows);

struct AttentionBatch {
  const AttentionBlock* blocks;
  int64_t num_blocks;
  int64_t T;
};

// The largest head that any of them takes.
inline constexpr int64_t kMaxHeadDim = 256;

// A is bf16 or float. lse [H, T] may be null.
template <typename A>
void attention(const A* qkv_TQ, const AttentionShape& shape, const AttentionBatch& batch, A* o_THE,
               float* lse_HT, CudaStream stream);

// scratch: attention_backward_scratch_bytes() of scratch.h.
template <typename A>
void attention_backward(const A* do_THE, const A* qkv_TQ, const A* o_THE, const float* lse_HT,
                        const AttentionShape& shape, const AttentionBatch& batch, A* dqkv_TQ, void* scratch,
                        CudaStream stream);

// T new tokens after cache_length others of one sequence; copies their keys and values to the caches
// [capacity, G E] first.
template <typename A>
void attention_cached(const A* qkv_TQ, const AttentionShape& shape, A* k_cache, A* v_cache,
                      int64_t cache_length, int64_t T, A* o_THE, CudaStream stream);

}  // namespace tessera::cuda
