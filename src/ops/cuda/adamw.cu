#include "ops/cuda/adamw.h"

#include "ops/cuda/launch.cuh"
#include "ops/cuda/numbers.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWidth = 4;  // elements of a thread

// Every operation is rounded by itself, as in torch.optim.AdamW. Returns the new weight.
__device__ float update_element(float weight, float gradient, float* m, float* v, const AdamWFactors& f) {
  const float g = __fmul_rn(gradient, f.gradient_scale);
  const float decayed = __fmul_rn(weight, f.decay);
  *m = __fadd_rn(__fmul_rn(f.beta1, *m), __fmul_rn(f.one_minus_beta1, g));
  *v = __fadd_rn(__fmul_rn(f.beta2, *v), __fmul_rn(__fmul_rn(f.one_minus_beta2, g), g));
  const float denominator = __fadd_rn(__fdiv_rn(__fsqrt_rn(*v), f.bias_correction2_sqrt), f.epsilon);
  return __fsub_rn(decayed, __fmul_rn(f.step_size, __fdiv_rn(*m, denominator)));
}

__global__ void update_f32(float* weight, const float* gradient, float* m, float* v, int64_t count, AdamWFactors f) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) weight[i] = update_element(weight[i], gradient[i], m + i, v + i, f);
}

// join_master(), master_weight() and master_remainder() of base/float_types.h.
__device__ void update_master(bf16* weight, int16_t* remainder, float gradient, float* m, float* v,
                              const AdamWFactors& f) {
  const float master = __uint_as_float((static_cast<uint32_t>(weight->bits) << 16) +
                                       static_cast<uint32_t>(static_cast<int32_t>(*remainder)));
  const float updated = update_element(master, gradient, m, v, f);
  // The card's own NaN would be rounded to -0.
  const uint32_t bits = updated == updated ? __float_as_uint(updated) : 0x7FC00000u;
  weight->bits = static_cast<uint16_t>((bits + 0x8000u) >> 16);
  *remainder = static_cast<int16_t>(bits & 0xFFFFu);
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
                            int64_t count, AdamWFactors f) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i >= count) return;
  Weights w = weight[i];
  Remainders r = remainder[i];
  const Floats g = gradient[i];
  Floats first = m[i], second = v[i];
#pragma unroll
  for (int k = 0; k < kWidth; ++k) update_master(&w.of[k], &r.of[k], g.of[k], &first.of[k], &second.of[k], f);
  weight[i] = w;
  remainder[i] = r;
  m[i] = first;
  v[i] = second;
}

__global__ void update_bf16_one(bf16* weight, int16_t* remainder, const float* gradient, float* m, float* v,
                                int64_t count, AdamWFactors f) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < count) update_master(weight + i, remainder + i, gradient[i], m + i, v + i, f);
}

dim3 blocks(int64_t count) { return dim3(static_cast<unsigned>(divide_up(count, kThreads))); }

}  // namespace

void adamw_f32(float* weight, const float* gradient, float* m, float* v, int64_t count, const AdamWFactors& factors,
               CudaStream stream) {
  launch(update_f32, blocks(count), dim3(kThreads), 0, stream, weight, gradient, m, v, count, factors);
}

void adamw_bf16(bf16* weight, int16_t* remainder, const float* gradient, float* m, float* v, int64_t count,
                const AdamWFactors& factors, CudaStream stream) {
  int64_t wide = count / kWidth;
  for (const void* address : {static_cast<const void*>(weight), static_cast<const void*>(remainder),
                              static_cast<const void*>(gradient), static_cast<const void*>(m),
                              static_cast<const void*>(v)}) {
    if (reinterpret_cast<uintptr_t>(address) % 16 != 0) wide = 0;
  }
  launch(update_bf16, blocks(wide), dim3(kThreads), 0, stream, reinterpret_cast<Weights*>(weight),
         reinterpret_cast<Remainders*>(remainder), reinterpret_cast<const Floats*>(gradient),
         reinterpret_cast<Floats*>(m), reinterpret_cast<Floats*>(v), wide, factors);
  const int64_t done = wide * kWidth;
  launch(update_bf16_one, blocks(count - done), dim3(kThreads), 0, stream, weight + done, remainder + done,
         gradient + done, m + done, v + done, count - done, factors);
}

}  // namespace tessera::cuda
