// Entry of a block: completes and normalises the residual stream in one pass.
//
// A block writes its output y into the buffer x of the next block, which begins by adding the stream that
// bypassed the previous block:  x = y + residual.  So every block's input is where backward needs it, and
// nothing is copied.
#pragma once

#include "ops/ops.h"

namespace tessera {

// x_TD += residual_TD (empty: x is complete), norm_TD = rmsnorm(x_TD); rstd_T F32.
inline void residual_norm(Ops& ops, TensorView x_TD, ConstTensorView residual_TD, ConstTensorView w_D,
                          float eps, TensorView norm_TD, TensorView rstd_T) {
  if (residual_TD.empty()) {
    ops.rmsnorm(x_TD, w_D, eps, norm_TD, rstd_T);
  } else {
    ops.add_rmsnorm(x_TD, residual_TD, w_D, eps, norm_TD, rstd_T);
  }
}

}  // namespace tessera
