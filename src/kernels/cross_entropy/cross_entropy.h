// Softmax cross-entropy of logits against token ids, loss and gradient in one pass over each row.
//
//   lse_r  = log sum_v exp(x_rv)
//   loss_r = (1 - s) (lse_r - x_r,target) + s (lse_r - mean_v x_rv)             (s = label smoothing)
//   dx_rv  = grad_scale (exp(x_rv - lse_r) - (1 - s) [v = target] - s / V)
//
// as torch.nn.functional.cross_entropy with ignore_index and label_smoothing. Rows whose target is
// kIgnoredLabel have no loss and a zero gradient. A row that holds a NaN or +infinity, or nothing but
// -infinity, has a loss and a gradient of NaN; beside finite logits -infinity is a probability of zero (its
// loss is infinite where it is the target or s > 0).
//
// logits_RV is F32 [R, V], targets [R] in [0, V) or kIgnoredLabel (checked by the caller). dlogits_RV is BF16
// or F32 [R, V] or empty (loss only); when F32 it may be the same memory as logits.
// Row losses are added in double in the order of rows: results do not depend on the number of threads.
//
// Error, with p_v = exp(x_v - lse), m = max_v x_v, eps = 2^-24, and d = 270 + sum_v p_v (m - x_v) (blocks of
// 256 exponentials are summed in float32, the blocks in double):
//   |loss - exact| <= eps (d + 260 s mean_v |x_v|)
//   |dx_v - exact| <= eps |grad_scale| (p_v (d + 12 + m - x_v) + 4 s / V), then dx is rounded to its type
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "platform/thread_pool.h"
#include "tensor/packed_batch.h"
#include "tensor/tensor_view.h"

namespace tessera {

struct LossSums {
  double loss_sum = 0;      // sum over targets of the token loss (label smoothing included)
  int64_t num_targets = 0;  // rows whose target is not kIgnoredLabel
};

// Bytes of scratch (64-byte aligned) for the losses of `rows` rows.
int64_t cross_entropy_scratch_bytes(int64_t rows);

LossSums cross_entropy(ConstTensorView logits_RV, std::span<const int32_t> targets, float label_smoothing,
                       float grad_scale, TensorView dlogits_RV, std::span<std::byte> scratch,
                       ThreadPool& pool);

}  // namespace tessera
