// The function between the two products of a feed-forward block, other than Llama's (kernels/swiglu).
//
//   gated:  h_TF = f(gate) up,  rows of pre_TP are [gate: F | up: F], P = 2 F
//   other:  h_TF = f(pre),  P = F
//   relu(x) = max(x, 0), with the gradient 0 at 0
//   gelu(x) = x Phi(x), Phi the normal distribution's
//   gelu_tanh(x) = x s(2 u), s the sigmoid, u = sqrt(2 / pi) (x + 0.044715 x^3): the approximation by tanh
// as 0.5 (1 + tanh u) = s(2 u). Hendrycks and Gimpel, "Gaussian error linear units", 2016.
//
// BF16 or F32, the same dtype in one call; float32 arithmetic, rounded once.
#pragma once

#include "platform/thread_pool.h"
#include "tensor/activation.h"
#include "tensor/tensor_view.h"

namespace tessera {

// Not kGatedSilu.
void activation(Activation which, ConstTensorView pre_TP, TensorView h_TF, ThreadPool& pool);

// Also recomputes h_TF, bit-identical to activation(): the gradient of the second product needs it. dpre_TP
// may be pre_TP, h_TF may be dh_TF.
void activation_backward(Activation which, ConstTensorView dh_TF, ConstTensorView pre_TP, TensorView dpre_TP,
                         TensorView h_TF, ThreadPool& pool);

}  // namespace tessera
