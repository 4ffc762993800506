// The AdamW update (kernels/adamw/adamw.h) on a card, bit for bit as on the processor. Pointers are the
// card's.
#pragma once

#include <cstdint>

#include "devices/cuda/cuda_stream.h"
#include "kernels/adamw/adamw.h"

namespace tessera::cuda {

void adamw_f32(float* weight, const float* gradient, float* m, float* v, int64_t count,
               const AdamWScalars& scalars, CudaStream stream);
void adamw_bf16(bf16* weight, int16_t* remainder, const float* gradient, float* m, float* v, int64_t count,
                const AdamWScalars& scalars, CudaStream stream);
void adamw_bf16_half(bf16* weight, int16_t* remainder, const float* gradient, const HalfMoments& moments,
                     int64_t count, const AdamWScalars& scalars, CudaStream stream);

}  // namespace tessera::cuda
