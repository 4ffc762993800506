// Attention of BF16 heads on Hopper cards (compute capability 9.0): products by warpgroups from tiles in
// shared memory, which one warp copies while the others compute (Shah et al., FlashAttention-3, 2024). The
// sums are those of the kernels for other cards, in another order.
#pragma once

#include "devices/cuda/attention/attention.h"

namespace tessera::cuda::hopper {

// Whether this call is for these kernels: on such a card, and for heads of 64 to 128 elements, a multiple
// of 8. TESSERA_WGMMA=0 in the environment turns them off, to test and compare the others.
bool takes(const AttentionShape& shape);

// batch.blocks has kAttentionRows rows in a block.
inline constexpr int kAttentionRows = 128;
void attention(const bf16* qkv_TQ, const AttentionShape& shape, const AttentionBatch& batch, bf16* o_THE,
               float* lse_HT, CudaStream stream);
// delta [H, T]: the sums over a head's elements of o do.
void attention_backward(const bf16* do_THE, const bf16* qkv_TQ, const float* lse_HT, const float* delta_HT,
                        const AttentionShape& shape, const AttentionBatch& batch, bf16* dqkv_TQ,
                        CudaStream stream);

}  // namespace tessera::cuda::hopper
