// Scratch memory of the operations on a card, for the kernels that divide it up and, with workspace.h, for
// plans of a card that this machine does not have: nothing here needs CUDA.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/divide_up.h"
#include "kernels/attention/attention_shape.h"

namespace tessera::cuda {

// The workspace begins with the workspace of the products; the scratch memory of one operation follows.
inline constexpr int64_t kProductWorkspaceBytes = int64_t{64} << 20;

// Rows per partial sum of a norm's dw: few enough to occupy the card, up to this number of sums.
inline constexpr int64_t kLeastNormRows = 16;
inline constexpr int64_t kMostNormPartials = 1024;
// Rows per partial sum of a bias gradient, chosen likewise.
inline constexpr int64_t kLeastBiasRows = 64;
inline constexpr int64_t kMostBiasPartials = 256;
inline constexpr int64_t kMostSquareBlocks = 2048;  // of sum_of_squares()

// Bytes of scratch; enough for fewer rows, too.
inline int64_t rmsnorm_backward_scratch_bytes(int64_t R, int64_t D) {
  return std::min(divide_up(R, kLeastNormRows), kMostNormPartials) * D * static_cast<int64_t>(sizeof(float));
}
// Suffices for any range of heads in at most T rows.
inline int64_t head_rmsnorm_backward_scratch_bytes(int64_t T, const AttentionShape& shape) {
  return rmsnorm_backward_scratch_bytes(T * (shape.num_heads + 2 * shape.num_key_value_heads),
                                        shape.head_dim);
}
inline int64_t bias_gradient_scratch_bytes(int64_t T, int64_t N) {
  return std::min(divide_up(T, kLeastBiasRows), kMostBiasPartials) * N * static_cast<int64_t>(sizeof(float));
}
inline int64_t sum_of_squares_scratch_bytes() {
  return kMostSquareBlocks * static_cast<int64_t>(sizeof(double));
}
inline int64_t attention_backward_scratch_bytes(const AttentionShape& shape, int64_t T) {
  return shape.num_heads * T * static_cast<int64_t>(sizeof(float));
}

}  // namespace tessera::cuda
