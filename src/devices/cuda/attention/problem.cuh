// Arguments of the attention kernels for the tensor cores.
#pragma once

#include "devices/cuda/attention/attention.h"
#include "devices/cuda/numbers.cuh"

namespace tessera::cuda {

inline constexpr float kLog2E = 1.4426950408889634f;

// The arguments of a forward call.
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

// The inputs of the backward kernels besides q, k and v, and their outputs.
struct AttentionGradients {
  const bf16* d_o;     // [T, H E]
  const float* lse;    // [H, T]
  const float* delta;  // [H, T]
  bf16* dqkv;          // [T, Q]
};

}  // namespace tessera::cuda
