// The gated activation of GPT-OSS's experts, whose columns of gate and up alternate.
//
//   g = min(gate, limit)    u = max(-limit, min(up, limit))    s = 1 / (1 + exp(-alpha g))
//   h_TF = (u + 1) g s
//   dgate = dh (u + 1) s (1 + alpha g (1 - s)), 0 where gate > limit    dup = dh g s, 0 where |up| > limit
//
// Rows of pre_TF2 are [gate_0, up_0, gate_1, up_1, ...]. BF16 or F32, the same dtype in one call; float32
// arithmetic, rounded once. NaN reaches the output. Source: GptOssExperts of Transformers.
#pragma once

#include "platform/thread_pool.h"
#include "tensor/activation.h"
#include "tensor/tensor_view.h"

namespace tessera {

void clamped_swiglu(ConstTensorView pre_TF2, const ClampedSwiglu& clamp, TensorView h_TF, ThreadPool& pool);

// Also recomputes h_TF, bit-identical to clamped_swiglu(): the gradient of the down projection needs it.
// dpre_TF2 may be pre_TF2, h_TF may be dh_TF.
void clamped_swiglu_backward(ConstTensorView dh_TF, ConstTensorView pre_TF2, const ClampedSwiglu& clamp,
                             TensorView dpre_TF2, TensorView h_TF, ThreadPool& pool);

}  // namespace tessera
