// y = x w^T (+ bias) for few tokens, as in generation: every weight is read once, in place, and that takes
// all the time. Packing for tiles would move each weight three times.
#pragma once

#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera::amx {

// Up to this many rows, dot products in AVX-512 (one VDPBF16PS per token and 64 bytes of weights) keep up
// with memory.
inline constexpr int64_t kFewRows = 16;

// Shapes and types as in gemm_forward() for BF16; 1 to kFewRows rows of x.
void few_rows_forward(ConstTensorView x_TK, ConstTensorView w_NK, ConstTensorView bias_N, TensorView y_TN,
                      ThreadPool& pool);

}  // namespace tessera::amx
