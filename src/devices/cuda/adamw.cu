#include "devices/cuda/adamw.h"

#include "devices/cuda/adamw_element.cuh"
#include "devices/cuda/launch.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 4;  // elements of a thread

__global__ void update_f32(float* weight, const float* gradient, float* m, float* v, int64_t count, AdamWScalars scalars) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) weight[i] = update_element(weight[i], gradient[i], m + i, v + i, scalars);
}

__device__ void update_master(bf16* weight, int16_t* remainder, float gradient, float* m, float* v,
                              const AdamWScalars& scalars) {
  store_master(update_element(load_master(*weight, *remainder), gradient, m, v, scalars), weight, remainder);
}

struct alignas(8) Weights {
  bf16 of[kWidth];
};
struct alignas(8) Remainders {
  int16_t of[kWidth];
};
struct alignas(16) Floats {
  float of[kWidth];
};

// kWidth elements a thread, of arrays that begin at multiples of 16 bytes.
__global__ void update_bf16(Weights* weight, Remainders* remainder, const Floats* gradient, Floats* m, Floats* v,
                            int64_t count, AdamWScalars scalars) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  Weights w = weight[i];
  Remainders r = remainder[i];
  const Floats g = gradient[i];
  Floats first = m[i], second = v[i];
#pragma unroll
  for (int k = 0; k < kWidth; ++k) update_master(&w.of[k], &r.of[k], g.of[k], &first.of[k], &second.of[k], scalars);
  weight[i] = w;
  remainder[i] = r;
  m[i] = first;
  v[i] = second;
}

__global__ void update_bf16_one(bf16* weight, int16_t* remainder, const float* gradient, float* m, float* v,
                                int64_t count, AdamWScalars scalars) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) update_master(weight + i, remainder + i, gradient[i], m + i, v + i, scalars);
}

dim3 blocks(int64_t count) { return dim3(static_cast<unsigned>(divide_up(count, kThreads))); }

}  // namespace

void adamw_f32(float* weight, const float* gradient, float* m, float* v, int64_t count, const AdamWScalars& scalars,
               CudaStream stream) {
  launch(update_f32, blocks(count), dim3(kThreads), 0, stream, weight, gradient, m, v, count, scalars);
}

void adamw_bf16(bf16* weight, int16_t* remainder, const float* gradient, float* m, float* v, int64_t count,
                const AdamWScalars& scalars, CudaStream stream) {
  int64_t wide = count / kWidth;
  for (const void* address : {static_cast<const void*>(weight), static_cast<const void*>(remainder),
                              static_cast<const void*>(gradient), static_cast<const void*>(m),
                              static_cast<const void*>(v)}) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) wide = 0;
  }
  launch(update_bf16, blocks(wide), dim3(kThreads), 0, stream, reinterpret_cast<Weights*>(weight),
         reinterpret_cast<Remainders*>(remainder), reinterpret_cast<const Floats*>(gradient),
         reinterpret_cast<Floats*>(m), reinterpret_cast<Floats*>(v), wide, scalars);
  const int64_t done = wide * kWidth;
  launch(update_bf16_one, blocks(count - done), dim3(kThreads), 0, stream, weight + done, remainder + done,
         gradient + done, m + done, v + done, count - done, scalars);
}

}  // namespace tessera::cuda
