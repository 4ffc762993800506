// Rotary position embedding. Su et al., RoFormer, 2021. Of every head the first R elements are rotated,
// halves paired as in Hugging Face (i with i + R/2), or neighbours (2 i with 2 i + 1):
//
//   (a, b) -> (a cos - b sin, b cos + a sin),  angle = position * inverse frequency i
//
// Query heads are then multiplied by a factor of their position, if the table has one.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/attention/attention_shape.h"
#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

// cos and sin of position * inverse frequency, F32 [positions, R / 2] each; filled by the model. The rotation
// may carry a factor, which they then have both.
struct RopeTable {
  ConstTensorView cos;
  ConstTensorView sin;
  ConstTensorView query_scale = {};  // F32 [positions], or empty
  bool interleaved = false;          // pairs are neighbours
};

// Rotates the H query and G key heads of every row of qkv_TQ (BF16 or F32) in place; value heads are
// unchanged. positions [T] index the table. `inverse` applies the transpose (sin -> -sin), which is the
// backward pass. Float32 arithmetic, rounded once.
void rope(TensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> positions,
          const RopeTable& table, bool inverse, ThreadPool& pool);

}  // namespace tessera
