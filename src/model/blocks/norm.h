// The norms of a decoder's blocks, of the kind that the model has (NormKind).
#pragma once

#include "formats/huggingface/model_config.h"
#include "ops/ops.h"

namespace tessera {

struct NormConfig {
  float eps = 1e-6f;
  NormKind kind = NormKind::kRms;

  NormConfig(float epsilon = 1e-6f, NormKind of_kind = NormKind::kRms)
      : eps(epsilon), kind(of_kind) {}  // NOLINT
  explicit NormConfig(const ModelConfig& config)
      : eps(static_cast<float>(config.rms_norm_eps)), kind(config.norm) {}

  NormWeight weight(ConstTensorView w) const { return {w, kind == NormKind::kRmsPlusOne ? 1.0f : 0.0f}; }
};

// The statistics of num_rows rows, F32: rstd, and the mean of LayerNorm before it.
inline Shape norm_statistics_shape(NormKind kind, int64_t num_rows) {
  return kind == NormKind::kLayer ? Shape{num_rows, 2} : Shape{num_rows};
}

inline void norm_forward(Ops& ops, const NormConfig& config, ConstTensorView x_RD, ConstTensorView w_D,
                         TensorView y_RD, TensorView statistics_R) {
  if (config.kind == NormKind::kLayer) return ops.layernorm(x_RD, w_D, {}, config.eps, y_RD, statistics_R);
  ops.rmsnorm(x_RD, config.weight(w_D), config.eps, y_RD, statistics_R);
}

// dx_RD = or += the gradient through the norm; dw_D = or += (F32); empty: not wanted.
inline void norm_backward(Ops& ops, const NormConfig& config, ConstTensorView dy_RD, ConstTensorView x_RD,
                          ConstTensorView w_D, ConstTensorView statistics_R, TensorView dx_RD,
                          Update dx_update, TensorView dw_D, Update dw_update) {
  if (config.kind == NormKind::kLayer)
    return ops.layernorm_backward(dy_RD, x_RD, w_D, statistics_R, dx_RD, dx_update, dw_D, {}, dw_update);
  ops.rmsnorm_backward(dy_RD, x_RD, config.weight(w_D), statistics_R, dx_RD, dx_update, dw_D, dw_update);
}

// What becomes of the output of attention or MLP before it is added to the stream: a norm, a factor, or
// nothing.
struct BlockOutput {
  bool has_norm = false;
  float scale = 1;  // without a norm

  // Whether the gradient of the output is another one than that of the stream.
  bool changes() const { return has_norm || scale != 1; }
};
inline BlockOutput block_output(const ModelConfig& config) {
  return {config.norm_placement != NormPlacement::kBefore, static_cast<float>(config.residual_scale)};
}

// y from the output `raw` of a block, which is y itself without a norm. Statistics as of norm_forward().
inline void leave_block(Ops& ops, const BlockOutput& output, const NormConfig& norm, ConstTensorView w_D,
                        ConstTensorView raw_RD, TensorView y_RD, TensorView statistics_R) {
  if (output.has_norm) {
    norm_forward(ops, norm, raw_RD, w_D, y_RD, statistics_R);
  } else if (output.scale != 1) {
    ops.scale(raw_RD, output.scale, y_RD);
  }
}

// The gradient of `raw` from that of y: dy itself, or in draw_RD.
inline TensorView leave_block_backward(Ops& ops, const BlockOutput& output, const NormConfig& norm,
                                       ConstTensorView w_D, TensorView dy_RD, ConstTensorView raw_RD,
                                       ConstTensorView statistics_R, TensorView draw_RD, TensorView dw_D,
                                       Update dw_update) {
  if (!output.changes()) return dy_RD;
  if (output.has_norm) {
    norm_backward(ops, norm, dy_RD, raw_RD, w_D, statistics_R, draw_RD, Update::kOverwrite, dw_D, dw_update);
  } else {
    ops.scale(dy_RD, output.scale, draw_RD);
  }
  return draw_RD;
}

}  // namespace tessera
