// The implementations behind cross_entropy.h, for its dispatch, tests and benchmarks.
#pragma once

#include <vector>

#include "kernels/cross_entropy/cross_entropy.h"
#include "kernels/dispatch.h"

namespace tessera {

// One row with a target: returns the loss and, when `dlogits` is not null, writes the gradient. dlogits may
// be logits.
struct CrossEntropyKernels {
  double (*row_f32)(const float* logits, int64_t vocab_size, int32_t target, float label_smoothing,
                    float grad_scale, float* dlogits);
  double (*row_bf16)(const float* logits, int64_t vocab_size, int32_t target, float label_smoothing,
                     float grad_scale, bf16* dlogits);
};

const DispatchTable<CrossEntropyKernels>& cross_entropy_table();

// cross_entropy() with the given implementation.
LossSums cross_entropy_with(const CrossEntropyKernels& kernels, ConstTensorView logits_RV,
                            std::span<const int32_t> targets, float label_smoothing, float grad_scale,
                            TensorView dlogits_RV, std::span<std::byte> scratch, ThreadPool& pool);

std::vector<Implementation<CrossEntropyKernels>> cross_entropy_hwy();
std::vector<Implementation<CrossEntropyKernels>> cross_entropy_ref();

}  // namespace tessera
