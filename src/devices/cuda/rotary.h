// kernels/rope on the device.
#pragma once

#include <cstdint>

#include "devices/cuda/cuda_stream.h"
#include "kernels/attention/attention_shape.h"

namespace tessera::cuda {

// Rotates the query and key heads of T rows in place: (a, b) -> (a cos - b sin, b cos + a sin), or back with
// `inverse`. cos and sin are [P, E / 2], positions [T] are below P.
template <typename A>
void rope(A* qkv_TQ, const AttentionShape& shape, const int32_t* positions, const float* cos,
          const float* sin, bool inverse, int64_t T, CudaStream stream);

}  // namespace tessera::cuda
