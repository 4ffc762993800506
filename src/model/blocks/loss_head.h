// Final norm, LM head and cross-entropy, forward and backward together, so that float32 logits exist only in
// pieces (LogitsLimits).
//
//   forward:  (1) x' = rows of x that have a target,  norm = output_scale rmsnorm(x')
//                                                            (BERT: norm = layernorm(f(x' w^T + b)))
//             (2) logits = norm w^T                          (BERT: + b; Gemma 2: then c tanh(logits / c))
//             (3) loss = sum of token losses
//
// Rows without a target have no loss and no gradient and are left out of every product.
//
// Pieces are whole rows of logits if at least kMinWholeRows fit: (2), (3) and their backward run piece by
// piece. A larger vocabulary is walked in chunks of columns for all rows of a block: once for the softmax of
// every row, then again, last chunk first, to recompute each chunk's logits and take its gradient, so that
// the weights and their float32 gradient are streamed once per block of up to kMaxBlockRows rows. (Wijmans et
// al., Cut your losses in large-vocabulary language models, 2024.)
#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "formats/huggingface/model_config.h"
#include "model/blocks/norm.h"
#include "model/dropout_place.h"
#include "ops/ops.h"
#include "tensor/arena.h"

namespace tessera {

template <typename View, typename Matrix = View>
struct LossHeadTensors {
  View norm_D;        // model.norm
  Matrix lm_head_VD;  // the embedding if tied
  // Of encoders: what comes before the norm, whose bias the second is, and the bias of the logits; each may
  // be empty.
  Matrix transform_DD;
  View transform_b_D;
  View norm_b_D;
  View lm_head_b_V;
};
using LossHeadWeights = LossHeadTensors<ConstTensorView, LinearWeight>;
using LossHeadGrads = LossHeadTensors<TensorView>;

// The number of float32 logits held at a time, and the multiple that their number of whole rows is rounded to
// if there are enough of them.
struct LogitsLimits {
  // Still in a server's last-level cache when the loss reads them.
  static constexpr int64_t kHostBytes = int64_t{64} << 20;
  // Enough rows of a large vocabulary (2,048 of 128,256) to outweigh the gradient of the LM head, which every
  // piece reads and writes, so that no logits are computed twice.
  static constexpr int64_t kCardBytes = int64_t{1} << 30;

  int64_t bytes = kHostBytes;
  int64_t row_multiple = 1;
};
// For a device with memory of its own: kCardBytes, and rows in multiples of the tiles of products.
LogitsLimits logits_limits(const Device& device);

// Each piece of whole rows moves 12 bytes per element of the LM head (two reads, its gradient read and
// written), 0.27 ns at 45 GB/s; recomputing R rows of logits takes 2 R operations per element, which takes as
// long at R = 450 and 3.4 TFLOP/s.
inline constexpr int64_t kMinWholeRows = 512;
// Rows that share one pass over the LM head: 1.6 us of arithmetic per 0.4 ns of memory traffic per element.
inline constexpr int64_t kMaxBlockRows = 2048;

// The pieces into which the logits [num_tokens, vocab_size] are cut: rows x columns <= num_elements.
struct LogitsPieces {
  int64_t rows;
  int64_t columns;  // vocab_size = whole rows
  int64_t num_elements;
};
LogitsPieces logits_pieces(int64_t num_tokens, int64_t vocab_size, const LogitsLimits& limits = {});
// Every way in which logits of up to max_tokens rows are cut, each with the most rows cut that way.
std::vector<LogitsPieces> all_logits_pieces(int64_t max_tokens, int64_t vocab_size,
                                            const LogitsLimits& limits = {});

struct LossHeadConfig {
  NormConfig norm = {};
  float output_scale = 1;                    // of T5
  Dropout of_norm = {};                      // before it is scaled
  std::optional<Activation> transform = {};  // f of BERT, not gated; unset: (1) is rmsnorm
  float softcap = 0;                         // c of Gemma 2; 0: none
};

struct LossHeadScratch {
  LogitsPieces pieces;
  TensorView norm_TD;
  TensorView rstd_T;    // F32
  TensorView stats_T2;  // F32, of BERT's norm
  TensorView dense_TD;  // its input: before the activation, and after it
  TensorView activated_TD;
  TensorView logits;    // F32 [pieces.num_elements]
  TensorView dlogits;   // training; shares the memory of logits if activations are F32, without a soft cap
  TensorView dnorm_RD;  // F32, training with chunks of columns: sums over the chunks
  TensorView softmax;   // U8 [pieces.rows, kSoftmaxRowBytes] if cut into chunks of columns
};
LossHeadScratch allocate_loss_head_scratch(Arena& arena, const ModelConfig& config, DType dtype,
                                           const LogitsLimits& limits, int64_t num_tokens, bool training);

// The rows that have a target, in ascending order, on the host.
struct TargetRows {
  std::vector<int32_t> rows;
  std::vector<int32_t> targets;
  std::vector<uint64_t> dropout_tokens;  // with LossHeadConfig::of_norm

  void reserve(int64_t max_tokens, bool with_dropout);
};

// Where the losses of single sequences are added.
struct SequenceLosses {
  std::span<const int32_t> cu_seqlens;  // as in PackedBatch
  std::span<LossSums> sums;             // one per sequence; empty = not wanted
};

// Computes the loss of x_TD, whose rows it rearranges. targets [T] are token ids or kIgnoredLabel. Sets
// `selected`.
LossSums loss_head_forward(Ops& ops, const LossHeadConfig& config, const LossHeadWeights& weights,
                           std::span<const int32_t> targets, float label_smoothing, TensorView x_TD,
                           const LossHeadScratch& scratch, TargetRows& selected,
                           const SequenceLosses& by_sequence = {});

// Also computes dx_TD = gradient of grad_scale * loss with respect to x, zero in rows without a target.
// Weight gradients are overwritten or added to, according to `update`; untouched if no row has a target.
// Without gradients of weights (empty views) only dx is computed.
LossSums loss_head_forward_backward(Ops& ops, const LossHeadConfig& config, const LossHeadWeights& weights,
                                    const LossHeadGrads& grads, WeightUpdate update,
                                    std::span<const int32_t> targets, float label_smoothing, float grad_scale,
                                    TensorView x_TD, const LossHeadScratch& scratch, TargetRows& selected,
                                    TensorView dx_TD);

}  // namespace tessera
