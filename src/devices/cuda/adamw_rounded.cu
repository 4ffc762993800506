// AdamW with moments in BF16, rounded stochastically.
#include "base/rng.h"
#include "kernels/rounding_bits.h"
#include "devices/cuda/adamw.h"
#include "devices/cuda/adamw_element.cuh"
#include "devices/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;

// A thread has the elements of a group that get the words of one counter of random bits
// (kernels/rounding_bits.h): those with its lane.
constexpr int kElements = static_cast<int>(kRoundingGroup / kRoundingLanes);
constexpr int kLanes = static_cast<int>(kRoundingLanes);

struct ThreadElements {
  int64_t first;  // place in the arrays; negative or beyond their end where there is no such element
  int64_t count;
  uint32_t bits[kElements];

  __device__ int64_t at(int k) const { return first + k * kLanes; }
  __device__ bool exists(int k) const { return at(k) >= 0 && at(k) < count; }
};

// round_stochastically() of base/float_types.h.
__device__ void store_rounded(bf16* to, float value, uint32_t random_bits) {
  to->bits = static_cast<uint16_t>((bits_to_round(value) + random_bits) >> 16);
}

__device__ void load_moments(const HalfMoments& moments, const ThreadElements& elements,
                             float (&m)[kElements], float (&v)[kElements]) {
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    const int64_t i = elements.at(k);
    m[k] = elements.exists(k) ? load(moments.m[i]) : 0.0f;
    v[k] = elements.exists(k) ? load(moments.v[i]) : 0.0f;
  }
}
__device__ void store_moments(const HalfMoments& moments, const ThreadElements& elements,
                              const float (&m)[kElements], const float (&v)[kElements]) {
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    if (!elements.exists(k)) continue;
    store_rounded(moments.m + elements.at(k), m[k], elements.bits[k] & 0xFFFFu);
    store_rounded(moments.v + elements.at(k), v[k], elements.bits[k] >> 16);
  }
}

__global__ void __launch_bounds__(kThreads)
    update_rounded(bf16* weight, int16_t* remainder, const float* gradient, const HalfMoments moments,
                   int64_t count, const AdamWScalars scalars) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t group = moments.first_element / kRoundingGroup + thread / kLanes;
  const int64_t lane = thread % kLanes;
  ThreadElements elements = {group * kRoundingGroup - moments.first_element + lane, count, {}};
  const auto words = philox4x32(static_cast<uint64_t>(scalars.step),
                                static_cast<uint64_t>(group * kRoundingLanes + lane), kRoundingStream);
#pragma unroll
  for (int k = 0; k < kElements; ++k) elements.bits[k] = words[k];

  float m[kElements], v[kElements], masters[kElements], gradients[kElements];
  load_moments(moments, elements, m, v);
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    const int64_t i = elements.at(k);
    masters[k] = elements.exists(k) ? load_master(weight[i], remainder[i]) : 0.0f;
    gradients[k] = elements.exists(k) ? gradient[i] : 0.0f;
  }
#pragma unroll
  for (int k = 0; k < kElements; ++k) {
    if (!elements.exists(k)) continue;
    const int64_t i = elements.at(k);
    store_master(update_element(masters[k], gradients[k], m + k, v + k, scalars), weight + i, remainder + i);
  }
  store_moments(moments, elements, m, v);
}

}  // namespace

void adamw_bf16_half(bf16* weight, int16_t* remainder, const float* gradient, const HalfMoments& moments,
                     int64_t count, const AdamWScalars& scalars, CudaStream stream) {
  const int64_t first_group = moments.first_element / kRoundingGroup;
  const int64_t groups = divide_up(moments.first_element + count, kRoundingGroup) - first_group;
  launch(update_rounded, static_cast<unsigned>(divide_up(groups * kLanes, kThreads)), kThreads, 0, stream,
         weight, remainder, gradient, moments, count, scalars);
}

}  // namespace tessera::cuda
