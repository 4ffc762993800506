// Rotary position embedding, halves paired as in Hugging Face (i with i + E/2). Su et al., RoFormer, 2021.
//
//   (a, b) = (x_i, x_{i + E/2})  ->  (a cos - b sin, b cos + a sin),  angle = position * inverse frequency i
#pragma once

#include <cstdint>
#include <span>

#include "kernels/attention/attention_shape.h"
#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

// cos and sin of position * inverse frequency, F32 [positions, E / 2] each; filled by the model.
struct RopeTable {
  ConstTensorView cos;
  ConstTensorView sin;
};

// Rotates the H query and G key heads of every row of qkv_TQ (BF16 or F32) in place; value heads are
// unchanged. positions [T] index the table. `inverse` rotates back (sin -> -sin), which is the backward pass.
// Float32 arithmetic, rounded once.
void rope(TensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> positions,
          const RopeTable& table, bool inverse, ThreadPool& pool);

}  // namespace tessera
