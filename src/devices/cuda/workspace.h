// Workspace sizes of the operations on a card, which need not be in this machine.
#pragma once

#include <algorithm>
#include <cstdint>

#include "devices/cuda/scratch.h"
#include "ops/ops.h"

namespace tessera::cuda {

// Qualified: the processor's are called the same.
inline int64_t workspace_bytes(const OpsLimits& limits) {
  const int64_t T = limits.max_tokens, losses = std::max(limits.max_logits_rows, T);
  int64_t bytes =
      std::max(losses * static_cast<int64_t>(sizeof(double)), cuda::sum_of_squares_scratch_bytes());
  if (limits.training) {
    const AttentionShape& heads = limits.attention;
    bytes = std::max({bytes, cuda::rmsnorm_backward_scratch_bytes(T, limits.hidden_size),
                      cuda::head_rmsnorm_backward_scratch_bytes(T, heads),
                      cuda::attention_backward_scratch_bytes(heads, T)});
    for (const LinearLimits& linear : limits.linears) {
      bytes = std::max(bytes, cuda::bias_gradient_scratch_bytes(linear.max_rows, linear.weight.N));
    }
  }
  return kProductWorkspaceBytes + bytes;
}

}  // namespace tessera::cuda
