// Attention in float32, a warp per query or key: for float32 elements, and for heads that the tensor cores do
// not take.
#pragma once

#include "devices/cuda/attention/attention.h"

namespace tessera::cuda {

template <typename A>
void plain_attention(const A* qkv_TQ, const AttentionShape& shape, const AttentionBatch& batch, A* o_THE,
                     float* lse_HT, CudaStream stream);
// delta_HT = sum over E of o do.
template <typename A>
void attention_delta(const A* do_THE, const A* o_THE, const AttentionShape& shape, int64_t T, float* delta_HT,
                     CudaStream stream);
template <typename A>
void plain_attention_backward(const A* do_THE, const A* qkv_TQ, const float* lse_HT, const float* delta_HT,
                              const AttentionShape& shape, const AttentionBatch& batch, A* dqkv_TQ,
                              CudaStream stream);

}  // namespace tessera::cuda
