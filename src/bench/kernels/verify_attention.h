// Compares samples of attention and its gradient with float64.
#pragma once

#include <cstdint>
#include <span>

#include "bench/kernels/verify.h"
#include "kernels/attention/attention_shape.h"

namespace tessera {

// Checks o for a sample of queries and heads, and lse. With BF16 the probabilities may be rounded to BF16
// before the second product: 2 u sum p |v| more.
void verify_attention(Verifier& verifier, ConstTensorView qkv_TQ, const AttentionShape& shape,
                      std::span<const int32_t> cu_seqlens, ConstTensorView o_THE, ConstTensorView lse_HT);

// Checks dq for a sample of queries and heads, dk and dv for a sample of keys. With BF16, p and ds may be
// rounded to BF16 before their products.
void verify_attention_backward(Verifier& verifier, ConstTensorView do_THE, ConstTensorView qkv_TQ,
                               ConstTensorView o_THE, ConstTensorView lse_HT, const AttentionShape& shape,
                               std::span<const int32_t> cu_seqlens, ConstTensorView dqkv_TQ);

}  // namespace tessera
