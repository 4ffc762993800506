// The formulas of general_attention(), one pair of a query and a key after the other, in float64.
#pragma once

#include "kernels/attention/attention.h"

namespace tessera {

void general_forward_ref(const AttentionInputs& inputs, const AttentionShape& shape, TensorView o_THE,
                         TensorView lse_HT, std::span<std::byte> scratch, ThreadPool& pool);
void general_backward_ref(ConstTensorView do_THE, const AttentionInputs& inputs, ConstTensorView o_THE,
                          ConstTensorView lse_HT, const AttentionShape& shape,
                          const AttentionGradients& gradients, std::span<std::byte> scratch,
                          ThreadPool& pool);

}  // namespace tessera
