// Attention for bf16 activations on AMX: the forward and backward passes of the table row "amx"
// (attention_amx.cc).
#pragma once

#include "kernels/attention/attention_impl.h"

namespace tessera::amx {

void attention_forward(ConstTensorView qkv_TQ, const AttentionShape& shape,
                       std::span<const int32_t> cu_seqlens, TensorView o_THE, TensorView lse_HT,
                       std::span<std::byte> scratch, ThreadPool& pool);

void attention_backward(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                        ConstTensorView lse_HT, const AttentionShape& shape,
                        std::span<const int32_t> cu_seqlens, TensorView dqkv_TQ, std::span<std::byte> scratch,
                        ThreadPool& pool);

}  // namespace tessera::amx
