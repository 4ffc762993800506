// The AdamW update (kernels/adamw/adamw.h) on a card, bit for bit as on the processor. Pointers are the
// card's.
#pragma once

#include <cstdint>

#include "base/float_types.h"
#include "ops/cuda/cuda_stream.h"

namespace tessera::cuda {

// AdamWScalars.
struct AdamWFactors {
  float gradient_scale, decay, beta1, one_minus_beta1, beta2, one_minus_beta2, bias_correction2_sqrt, epsilon,
      step_size;
};

void adamw_f32(float* weight, const float* gradient, float* m, float* v, int64_t count,
               const AdamWFactors& factors, CudaStream stream);
void adamw_bf16(bf16* weight, int16_t* remainder, const float* gradient, float* m, float* v, int64_t count,
                const AdamWFactors& factors, CudaStream stream);

}  // namespace tessera::cuda
