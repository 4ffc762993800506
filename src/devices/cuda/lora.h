// Blocks of adapters, and dropout (kernels/lora/lora.h), on a card. A is bf16 or float; pointers are the
// card's.
#pragma once

#include <cstdint>

#include "devices/cuda/cuda_stream.h"

namespace tessera::cuda {

// e[i, j] = scale b[j, i] and db[j, i] = or += scale de[i, j], for i < rank and j < outputs; rows of e and de
// are `stride` elements apart.
template <typename A>
void lora_place(const A* b_NR, int64_t outputs, int64_t rank, float scale, A* e, int64_t stride,
                CudaStream stream);
void lora_take(const float* de, int64_t stride, int64_t outputs, int64_t rank, float scale, float* db_NR,
               bool adds, CudaStream stream);

// tokens [T]; an element is dropped if its 16 random bits are below `threshold`, otherwise multiplied by
// `scale`.
template <typename A>
void dropout(const A* x_TD, const uint64_t* tokens, uint64_t site, uint32_t threshold, float scale, bool adds,
             int64_t T, int64_t D, A* y_TD, CudaStream stream);

}  // namespace tessera::cuda
