// Final norm, LM head and cross-entropy, forward and backward in one pass over chunks of rows, so that the
// float32 logits of only one chunk exist at a time.
//
//   forward:  (1) x' = rows of x that have a target,  norm = rmsnorm(x')
//             (2) logits = norm w^T            for each chunk of R rows
//             (3) loss += sum of token losses  for each chunk
//
// Rows without a target have no loss and no gradient: they are left out of every product.
#pragma once

#include <cstdint>
#include <span>

#include "base/memory.h"
#include "formats/model_config.h"
#include "ops/ops.h"

namespace tessera {

template <typename View>
struct LossHeadTensors {
  View norm_D;      // model.norm
  View lm_head_VD;  // the embedding when tied
};
using LossHeadWeights = LossHeadTensors<ConstTensorView>;
using LossHeadGrads = LossHeadTensors<TensorView>;

// Float32 logits of one chunk stay within kLogitsChunkBytes, small enough to be still in a server's
// last-level cache when the loss reads them, but a chunk has at least kMinLogitsRows rows: each chunk reads
// and writes the float32 gradient of the LM head once (8 bytes per element, 0.1 ns at 80 GB/s), which stays
// below the product that it belongs to (2 * 256 operations per element, 0.25 ns at 2 TFLOP/s).
inline constexpr int64_t kLogitsChunkBytes = int64_t{64} << 20;
inline constexpr int64_t kMinLogitsRows = 256;

// R: rows of one chunk when num_tokens rows may have a target.
int64_t logits_rows(int64_t num_tokens, int64_t vocab_size);

struct LossHeadScratch {
  TensorView norm_TD;
  TensorView rstd_T;           // F32
  TensorView logits_RV;        // F32
  TensorView dlogits_RV;       // training; the memory of logits_RV when activations are F32
  std::span<int32_t> rows;     // [T] which rows have a target
  std::span<int32_t> targets;  // [T] their targets
};
LossHeadScratch allocate_loss_head_scratch(Arena& arena, const ModelConfig& config, DType dtype,
                                           int64_t num_tokens, bool training);

// The loss of x_TD, whose rows are moved about. targets [T] are tokens or kIgnoredLabel.
LossSums loss_head_forward(Ops& ops, float norm_eps, const LossHeadWeights& weights,
                           std::span<const int32_t> targets, float label_smoothing, TensorView x_TD,
                           const LossHeadScratch& scratch);

// The same, with dx_TD = gradient of grad_scale * loss by x, zero in rows without a target, and the weight
// gradients written or added to, as `update` says; left alone when no row has a target.
LossSums loss_head_forward_backward(Ops& ops, float norm_eps, const LossHeadWeights& weights,
                                    const LossHeadGrads& grads, Update update,
                                    std::span<const int32_t> targets, float label_smoothing, float grad_scale,
                                    TensorView x_TD, const LossHeadScratch& scratch, TensorView dx_TD);

}  // namespace tessera
