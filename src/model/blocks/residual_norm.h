// Entry of a block: completes and normalises the residual stream in one pass.
//
// A block writes its output y into the buffer x of the next block, which begins by adding the stream that
// bypassed the previous block:  x = y + residual.  So every block's input is where backward needs it, and
// nothing is copied.
#pragma once

#include "model/blocks/norm.h"
#include "ops/ops.h"

namespace tessera {

// x_TD += residual_TD (empty: x is complete), norm_TD = norm(x_TD); statistics_T as of norm_forward().
inline void residual_norm(Ops& ops, TensorView x_TD, ConstTensorView residual_TD, ConstTensorView w_D,
                          const NormConfig& norm, TensorView norm_TD, TensorView statistics_T) {
  if (!residual_TD.empty() && norm.kind != NormKind::kLayer) {
    return ops.add_rmsnorm(x_TD, residual_TD, norm.weight(w_D), norm.eps, norm_TD, statistics_T);
  }
  if (!residual_TD.empty()) ops.add(x_TD, residual_TD);
  norm_forward(ops, norm, x_TD, w_D, norm_TD, statistics_T);
}

// The input of a block: norm_TD, or the stream itself where the block has no norm before it (w_D is empty).
inline TensorView enter_block(Ops& ops, TensorView x_TD, ConstTensorView residual_TD, ConstTensorView w_D,
                              const NormConfig& norm, TensorView norm_TD, TensorView statistics_T) {
  if (w_D.empty()) {
    if (!residual_TD.empty()) ops.add(x_TD, residual_TD);
    return x_TD;
  }
  residual_norm(ops, x_TD, residual_TD, w_D, norm, norm_TD, statistics_T);
  return norm_TD;
}

// dx_TD += the gradient of the stream before a block from that of the block's input, which is in the place of
// the input.
inline void enter_block_backward(Ops& ops, TensorView dinput_TD, ConstTensorView x_TD, ConstTensorView w_D,
                                 const NormConfig& norm, ConstTensorView statistics_T, TensorView dx_TD,
                                 TensorView dw_D, Update dw_update) {
  if (w_D.empty()) return ops.add(dx_TD, dinput_TD);
  norm_backward(ops, norm, dinput_TD, x_TD, w_D, statistics_T, dx_TD, Update::kAdd, dw_D, dw_update);
}

}  // namespace tessera
