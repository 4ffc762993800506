// The gated activation of Llama's feed-forward layer. Shazeer, "GLU variants improve transformer", 2020.
//
//   h_TF = silu(gate) up,  silu(x) = x s,  s = 1 / (1 + exp(-x))
//   dgate = dh up s (1 + gate (1 - s))      dup = dh silu(gate)
//
// Rows of gate_up_TF2 are [gate: F | up: F]. BF16 or F32, the same dtype in one call; float32 arithmetic,
// rounded once.
#pragma once

#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

void swiglu(ConstTensorView gate_up_TF2, TensorView h_TF, ThreadPool& pool);

// Also recomputes h_TF, bit-identical to swiglu: the gradient of the down projection needs it. dgate_up_TF2
// may be gate_up_TF2, h_TF may be dh_TF.
void swiglu_backward(ConstTensorView dh_TF, ConstTensorView gate_up_TF2, TensorView dgate_up_TF2,
                     TensorView h_TF, ThreadPool& pool);

}  // namespace tessera
