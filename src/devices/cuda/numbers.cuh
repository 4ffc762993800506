// BF16 and float32 elements in device code: arithmetic is done in float32, results are rounded once, to nearest
// even.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "base/float_types.h"

namespace tessera::cuda {

__device__ inline float load(float value) { return value; }
__device__ inline float load(bf16 value) { return __uint_as_float(static_cast<uint32_t>(value.bits) << 16); }

// Two floats as two BF16 in one register, `low` in the lower half.
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}
__device__ inline float low_of(uint32_t packed) { return __uint_as_float(packed << 16); }
__device__ inline float high_of(uint32_t packed) { return __uint_as_float(packed & 0xFFFF0000u); }

__device__ inline void store(float* to, float value) { *to = value; }
__device__ inline void store(bf16* to, float value) {
  to->bits = static_cast<uint16_t>(pack_bf16(value, 0.0f));
}

// kVector<A> elements in one access of 16 bytes; addresses are multiples of that.
template <typename A>
inline constexpr int kVector = 16 / sizeof(A);

__device__ inline void load_vector(const float* from, float (&values)[4]) {
  const float4 v = *reinterpret_cast<const float4*>(from);
  values[0] = v.x, values[1] = v.y, values[2] = v.z, values[3] = v.w;
}
__device__ inline void load_vector(const bf16* from, float (&values)[8]) {
  const uint4 v = *reinterpret_cast<const uint4*>(from);
  const uint32_t words[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) values[2 * i] = low_of(words[i]), values[2 * i + 1] = high_of(words[i]);
}
__device__ inline void store_vector(float* to, const float (&values)[4]) {
  *reinterpret_cast<float4*>(to) = make_float4(values[0], values[1], values[2], values[3]);
}
__device__ inline void store_vector(bf16* to, const float (&values)[8]) {
  *reinterpret_cast<uint4*>(to) = make_uint4(pack_bf16(values[0], values[1]), pack_bf16(values[2], values[3]),
                                             pack_bf16(values[4], values[5]), pack_bf16(values[6], values[7]));
}

// The sum over the 32 lanes of a warp, in all of them; its order is fixed.
__device__ inline float warp_sum(float value) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, lane);
  return value;
}
__device__ inline double warp_sum(double value) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xFFFFFFFFu, value, lane);
  return value;
}
__device__ inline float warp_max(float value) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) value = fmaxf(value, __shfl_xor_sync(0xFFFFFFFFu, value, lane));
  return value;
}

// The sum over a block of at most 1,024 threads, a multiple of 32, in all of them; its order is fixed.
// `scratch` is shared memory for 32 values, free again after the next __syncthreads().
template <typename T>
__device__ inline T block_sum(T value, T* scratch) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  value = warp_sum(value);
  __syncthreads();
  if (lane == 0) scratch[warp] = value;
  __syncthreads();
  return warp_sum(lane < warps ? scratch[lane] : T(0));
}

}  // namespace tessera::cuda
