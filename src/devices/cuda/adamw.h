// The AdamW update (kernels/optimizer/adamw.h) on a card, bit for bit as on the processor. Pointers are the
// card's.
#pragma once

#include <cstdint>

#include "base/float_types.h"
#include "devices/cuda/cuda_stream.h"
#include "kernels/optimizer/adamw.h"

namespace tessera::cuda {

// BF16 moments of elements [first_element, ...) of all parameters.
struct HalfMoments {
  bf16* m;
  bf16* v;
  int64_t first_element;
};

void adamw_f32(float* weight, const float* gradient, float* m, float* v, int64_t count,
               const AdamWScalars& scalars, CudaStream stream);
void adamw_bf16(bf16* weight, int16_t* remainder, const float* gradient, float* m, float* v, int64_t count,
                const AdamWScalars& scalars, CudaStream stream);
void adamw_bf16_half(bf16* weight, int16_t* remainder, const float* gradient, const HalfMoments& moments,
                     int64_t count, const AdamWScalars& scalars, CudaStream stream);

}  // namespace tessera::cuda
