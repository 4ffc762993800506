// Compares samples of attention and its gradient with attention_expected.h.
#pragma once

#include <cstdint>
#include <span>

#include "bench/kernels/verify.h"
#include "kernels/attention/attention_shape.h"

namespace tessera {

// Checks o and lse for a sample of queries and heads.
void verify_attention(Verifier& verifier, ConstTensorView qkv_TQ, const AttentionShape& shape,
                      std::span<const int32_t> cu_seqlens, ConstTensorView o_THE, ConstTensorView lse_HT);

// Checks dq for a sample of queries and heads, dk and dv for a sample of keys.
void verify_attention_backward(Verifier& verifier, ConstTensorView do_THE, ConstTensorView qkv_TQ,
                               ConstTensorView o_THE, ConstTensorView lse_HT, const AttentionShape& shape,
                               std::span<const int32_t> cu_seqlens, ConstTensorView dqkv_TQ);

}  // namespace tessera
