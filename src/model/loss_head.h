// Final norm, LM head and cross-entropy, forward and backward together, so that float32 logits exist only in
// pieces of kLogitsBytes.
//
//   forward:  (1) x' = rows of x that have a target,  norm = rmsnorm(x')
//             (2) logits = norm w^T
//             (3) loss = sum of token losses
//
// Rows without a target have no loss and no gradient: they are left out of every product.
//
// Pieces are whole rows of logits where kMinWholeRows of them fit: (2), (3) and their backward follow one
// another. A larger vocabulary is walked in chunks of columns with all rows of a block: once for the softmax
// of every row, and once more, last chunk first, to compute each chunk's logits again and take its gradient,
// so that the weights and their float32 gradient pass once for up to kMaxBlockRows rows. (Wijmans et al., Cut
// your losses in large-vocabulary language models, 2024.)
#pragma once

#include <cstdint>
#include <span>

#include "base/memory.h"
#include "formats/model_config.h"
#include "ops/ops.h"

namespace tessera {

template <typename View, typename Matrix = View>
struct LossHeadTensors {
  View norm_D;        // model.norm
  Matrix lm_head_VD;  // the embedding when tied
};
using LossHeadWeights = LossHeadTensors<ConstTensorView, LinearWeight>;
using LossHeadGrads = LossHeadTensors<TensorView>;

// Float32 logits at a time: still in a server's last-level cache when the loss reads them.
inline constexpr int64_t kLogitsBytes = int64_t{64} << 20;

// Each piece of whole rows moves 12 bytes per element of the LM head (two reads, its gradient read and
// written), 0.27 ns at 45 GB/s; computing R rows of logits again takes 2 R operations per element, as long
// for R = 450 at 3.4 TFLOP/s.
inline constexpr int64_t kMinWholeRows = 512;
// Rows that share one passage of the LM head: 1.6 us of arithmetic for 0.4 ns of memory per element.
inline constexpr int64_t kMaxBlockRows = 2048;

// How the logits [num_tokens, vocab_size] are cut: rows x columns of each piece are at most num_elements.
struct LogitsPieces {
  int64_t rows;
  int64_t columns;  // vocab_size = whole rows
  int64_t num_elements;
};
LogitsPieces logits_pieces(int64_t num_tokens, int64_t vocab_size);
// All ways in which those of up to max_tokens rows are cut, each with the most rows that are cut so.
std::vector<LogitsPieces> all_logits_pieces(int64_t max_tokens, int64_t vocab_size);

struct LossHeadScratch {
  LogitsPieces pieces;
  TensorView norm_TD;
  TensorView rstd_T;              // F32
  TensorView logits;              // F32 [pieces.num_elements]
  TensorView dlogits;             // training; the memory of logits when activations are F32
  TensorView dnorm_RD;            // F32, training with chunks of columns: sums over the chunks
  std::span<SoftmaxRow> softmax;  // [rows] with chunks of columns
  std::span<int32_t> rows;        // [T] which rows have a target
  std::span<int32_t> targets;     // [T] their targets
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
                                    const LossHeadGrads& grads, WeightUpdate update,
                                    std::span<const int32_t> targets, float label_smoothing, float grad_scale,
                                    TensorView x_TD, const LossHeadScratch& scratch, TensorView dx_TD);

}  // namespace tessera
