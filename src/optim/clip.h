// Gradient clipping by the norm.
#pragma once

#include <algorithm>

namespace tessera {

// The factor that brings gradients of norm `norm` to at most max_norm, as torch.nn.utils.clip_grad_norm_:
// min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0.
inline double clip_factor(double norm, double max_norm) {
  return max_norm == 0 ? 1 : std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace tessera
