#include "kernels/attention/attention_amx.h"

namespace tessera {
namespace {

// The vector implementation handles float32, soft caps, generation, whose few rows would leave tiles mostly
// empty, and all attention that is not causal inside sequences or has sinks.
const AttentionKernels& vectors() {
  static const AttentionKernels kernels = attention_hwy().front().kernels;
  return kernels;
}

bool takes_tiles(ConstTensorView qkv_TQ, const AttentionShape& shape) {
  return qkv_TQ.dtype() == DType::kBF16 && shape.softcap == 0;
}

void forward_amx(ConstTensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                 TensorView o_THE, TensorView lse_HT, std::span<std::byte> scratch, ThreadPool& pool) {
  const auto forward = takes_tiles(qkv_TQ, shape) ? amx::attention_forward : vectors().forward;
  forward(qkv_TQ, shape, cu_seqlens, o_THE, lse_HT, scratch, pool);
}

void backward_amx(ConstTensorView do_THE, ConstTensorView qkv_TQ, ConstTensorView o_THE,
                  ConstTensorView lse_HT, const AttentionShape& shape, std::span<const int32_t> cu_seqlens,
                  TensorView dqkv_TQ, std::span<std::byte> scratch, ThreadPool& pool) {
  const auto backward = takes_tiles(qkv_TQ, shape) ? amx::attention_backward : vectors().backward;
  backward(do_THE, qkv_TQ, o_THE, lse_HT, shape, cu_seqlens, dqkv_TQ, scratch, pool);
}

void cached_amx(ConstTensorView qkv_TQ, const AttentionShape& shape, TensorView k_cache, TensorView v_cache,
                int64_t cache_length, ConstTensorView sinks_H, TensorView o_THE, std::span<std::byte> scratch,
                ThreadPool& pool) {
  vectors().cached(qkv_TQ, shape, k_cache, v_cache, cache_length, sinks_H, o_THE, scratch, pool);
}

void general_forward_amx(const AttentionInputs& inputs, const AttentionShape& shape, TensorView o_THE,
                         TensorView lse_HT, std::span<std::byte> scratch, ThreadPool& pool) {
  vectors().general_forward(inputs, shape, o_THE, lse_HT, scratch, pool);
}

void general_backward_amx(ConstTensorView do_THE, const AttentionInputs& inputs, ConstTensorView o_THE,
                          ConstTensorView lse_HT, const AttentionShape& shape,
                          const AttentionGradients& gradients, std::span<std::byte> scratch,
                          ThreadPool& pool) {
  vectors().general_backward(do_THE, inputs, o_THE, lse_HT, shape, gradients, scratch, pool);
}

}  // namespace

std::vector<Implementation<AttentionKernels>> attention_amx() {
  return {{"amx",
           Isa::kAmxBf16,
           {.forward = forward_amx,
            .backward = backward_amx,
            .cached = cached_amx,
            .general_forward = general_forward_amx,
            .general_backward = general_backward_amx}}};
}

}  // namespace tessera
