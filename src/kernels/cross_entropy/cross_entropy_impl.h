// The implementations behind cross_entropy.h, for its dispatch, tests and benchmarks.
#pragma once

#include <vector>

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/dispatch.h"

namespace tessera {

// The sum of exp(x - max) over some logits x, with their maximum max.
struct SoftmaxSum {
  float max;       // NaN if a logit is NaN or +infinity
  double sum_exp;  // meaningless unless max is finite
};

// The loops over `count` logits of one row; count >= 1.
struct CrossEntropyKernels {
  SoftmaxSum (*softmax_sum)(const float* x, int64_t count);
  double (*sum)(const float* x, int64_t count);
  // dx = factor exp(x - max) - offset; dx may be x.
  void (*gradient_f32)(const float* x, int64_t count, float max, double factor, double offset, float* dx);
  void (*gradient_bf16)(const float* x, int64_t count, float max, double factor, double offset, bf16* dx);
};

const DispatchTable<CrossEntropyKernels>& cross_entropy_table();

// The functions of cross_entropy.h with the given implementation.
LossSums cross_entropy_with(const CrossEntropyKernels& kernels, ConstTensorView logits_RV,
                            std::span<const int32_t> targets, float label_smoothing, float grad_scale,
                            TensorView dlogits_RV, std::span<std::byte> scratch, ThreadPool& pool);
void cross_entropy_add_chunk_with(const CrossEntropyKernels& kernels, ConstTensorView logits_RC,
                                  int64_t first_column, std::span<const int32_t> targets,
                                  float label_smoothing, std::span<SoftmaxRow> rows, ThreadPool& pool);
void cross_entropy_chunk_gradient_with(const CrossEntropyKernels& kernels, ConstTensorView logits_RC,
                                       int64_t first_column, int64_t vocab_size,
                                       std::span<const int32_t> targets, std::span<const SoftmaxRow> rows,
                                       float label_smoothing, float grad_scale, TensorView dlogits_RC,
                                       ThreadPool& pool);

std::vector<Implementation<CrossEntropyKernels>> cross_entropy_hwy();
std::vector<Implementation<CrossEntropyKernels>> cross_entropy_ref();

}  // namespace tessera
