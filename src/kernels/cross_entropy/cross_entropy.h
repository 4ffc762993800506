// Softmax cross-entropy of logits against token ids, loss and gradient: for whole rows in one pass over each
// row, or for rows available only one chunk of the vocabulary at a time.
//
//   lse_r  = log sum_v exp(x_rv)
//   loss_r = (1 - s) (lse_r - x_r,target) + s (lse_r - mean_v x_rv)             (s = label smoothing)
//   dx_rv  = grad_scale (exp(x_rv - lse_r) - (1 - s) [v = target] - s / V)
//
// as in torch.nn.functional.cross_entropy with ignore_index and label_smoothing. Rows whose target is
// kIgnoredLabel have no loss and a zero gradient. A row that contains a NaN or +infinity, or only -infinity,
// has a loss and gradient of NaN; next to finite logits -infinity is a probability of zero (its loss is
// infinite if it is the target or s > 0).
//
// logits are F32, targets [R] in [0, V) or kIgnoredLabel (checked by the caller). dlogits are BF16 or F32; if
// F32 they may share memory with the logits. Row losses are added in double in row order: results do not
// depend on the number of threads.
//
// Error, with p_v = exp(x_v - lse), m = max_v x_v, eps = 2^-24, and d = 270 + sum_v p_v (m - x_v) (blocks of
// 256 exponentials are summed in float32, the blocks in double):
//   |loss - exact| <= eps (d + 260 s mean_v |x_v|)
//   |dx_v - exact| <= eps |grad_scale| (p_v (d + 12 + m - x_v) + 4 s / V), then dx is rounded to its type
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "platform/thread_pool.h"
#include "tensor/packed_batch.h"
#include "tensor/tensor_view.h"

namespace tessera {

struct LossSums {
  double loss_sum = 0;      // sum of token losses over targets, including label smoothing
  int64_t num_targets = 0;  // rows whose target is not kIgnoredLabel
};

// Bytes of scratch (64-byte aligned) for the losses of `rows` rows.
int64_t cross_entropy_scratch_bytes(int64_t rows);

// Whole rows: logits_RV [R, V]; dlogits_RV [R, V] or empty (loss only).
LossSums cross_entropy(ConstTensorView logits_RV, std::span<const int32_t> targets, float label_smoothing,
                       float grad_scale, TensorView dlogits_RV, std::span<std::byte> scratch,
                       ThreadPool& pool);

// Rows by chunks of the vocabulary: add every chunk in ascending order, take the loss, then request the
// gradient of each chunk, in any order, passing the same logits again. (Milakov and Gimelshein, Online
// normalizer calculation for softmax, 2018; Wijmans et al., Cut your losses in large-vocabulary language
// models, 2024.)
//
// The state of a row after the chunks so far.
struct SoftmaxRow {
  double sum_exp = 0;                                   // sum of exp(x - max)
  double sum = 0;                                       // sum of x; only with label smoothing
  float max = -std::numeric_limits<float>::infinity();  // NaN: the row has no softmax
  float target_logit = 0;
};

// The states of R rows where memory has no type: U8 [R, kSoftmaxRowBytes].
inline constexpr int64_t kSoftmaxRowBytes = sizeof(SoftmaxRow);
inline std::span<SoftmaxRow> softmax_rows(TensorView rows) {
  return {reinterpret_cast<SoftmaxRow*>(rows.bytes()), static_cast<size_t>(rows.dim(0))};
}
inline std::span<const SoftmaxRow> softmax_rows(ConstTensorView rows) {
  return {reinterpret_cast<const SoftmaxRow*>(rows.bytes()), static_cast<size_t>(rows.dim(0))};
}

// logits_RC [R, C] are columns [first_column, first_column + C). The chunk at column 0 resets `rows` [R].
void cross_entropy_add_chunk(ConstTensorView logits_RC, int64_t first_column,
                             std::span<const int32_t> targets, float label_smoothing,
                             std::span<SoftmaxRow> rows, ThreadPool& pool);

// The losses of rows whose chunks have all been added.
LossSums cross_entropy_loss(std::span<const SoftmaxRow> rows, std::span<const int32_t> targets,
                            int64_t vocab_size, float label_smoothing);

// dlogits_RC [R, C] of one chunk.
void cross_entropy_chunk_gradient(ConstTensorView logits_RC, int64_t first_column, int64_t vocab_size,
                                  std::span<const int32_t> targets, std::span<const SoftmaxRow> rows,
                                  float label_smoothing, float grad_scale, TensorView dlogits_RC,
                                  ThreadPool& pool);

}  // namespace tessera
