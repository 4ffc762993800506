// Softmax cross-entropy (kernels/cross_entropy/cross_entropy.h) on a card. A is bf16 or float; pointers are
// the card's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "devices/cuda/cuda_stream.h"

namespace tessera::cuda {

// Rows and their targets [R]; rows whose target is `ignored` do not count.
struct LossRows {
  const int32_t* targets;
  int64_t R;
  int64_t V;  // of the whole vocabulary
  int32_t ignored;
  float label_smoothing;
};

// logits_RV, dlogits_RV (may be null, or logits); losses [R] in double, 0 of ignored rows.
template <typename A>
void cross_entropy(const float* logits_RV, const LossRows& rows, float grad_scale, A* dlogits_RV,
                   double* losses, CudaStream stream);

// By chunks of C columns from first_column on; states [R] of kSoftmaxRowBytes each, reset by the chunk at
// column 0.
void cross_entropy_add_chunk(const float* logits_RC, int64_t first_column, int64_t C, const LossRows& rows,
                             void* states, CudaStream stream);
void cross_entropy_losses(const void* states, const LossRows& rows, double* losses, CudaStream stream);
template <typename A>
void cross_entropy_chunk_gradient(const float* logits_RC, int64_t first_column, int64_t C,
                                  const LossRows& rows, const void* states, float grad_scale, A* dlogits_RC,
                                  CudaStream stream);

// Sums values [count] in a fixed order.
void sum_in_order(const double* values, int64_t count, double* sum, CudaStream stream);

}  // namespace tessera::cuda
