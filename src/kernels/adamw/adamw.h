// One AdamW update of flat arrays in one pass over weights, gradients and moments. Loshchilov and Hutter,
// 2019; formulas and their order as in torch.optim.AdamW (single tensor, float32):
//
//   g *= gradient_scale     w *= 1 - lr wd      m = b1 m + (1 - b1) g     v = b2 v + (1 - b2) g^2
//   w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
//
// BF16 weights are one half of an exact float32 master weight, 16-bit remainders the other (master_weight(),
// base/float_types.h). A BF16 run with remainders is bit-equal to a float32 run. Subnormal values become zero
// (platform/subnormals.h).
//
// BF16 moments take half the memory. They are rounded stochastically: rounding to nearest would never let v
// fall, whose change in a step, 1 - b2, is less than half a BF16 step. The random bits depend on the step and
// the element alone (kernels/rounding_bits.h), so a result depends neither on blocks nor on threads.
//
// 8-bit moments (kernels/block_code) take a quarter of it. The update itself is in float32; then the moments
// are rounded stochastically to codes, block by block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float_types.h"
#include "platform/thread_pool.h"

namespace tessera {

// The scalars of one step, computed in double by adamw_scalars and rounded to float32 once.
struct AdamWScalars {
  int64_t step;
  float gradient_scale;
  float decay;  // 1 - lr wd
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float bias_correction2_sqrt;  // sqrt(1 - b2^t)
  float epsilon;
  float step_size;  // lr / (1 - b1^t)
};

// `step` is t, counted from 1. weight_decay 0 makes decay 1.
AdamWScalars adamw_scalars(double learning_rate, double beta1, double beta2, double epsilon,
                           double weight_decay, int64_t step, double gradient_scale);

// BF16 moments of elements [first_element, ...) of all parameters.
struct HalfMoments {
  bf16* m;
  bf16* v;
  int64_t first_element;
};

// Moments of elements [first_element, ...) of all parameters in codes, m in I8 and v in U8. The first of them
// begins a block, and so do its codes.
struct CodedMoments {
  std::byte* m;
  std::byte* v;
  int64_t first_element;
};

// `count` elements; arrays do not overlap. gradient is F32.
void adamw_f32(float* weight, const float* gradient, float* m, float* v, int64_t count,
               const AdamWScalars& scalars, ThreadPool& pool);
void adamw_bf16(bf16* weight, int16_t* remainder, const float* gradient, float* m, float* v, int64_t count,
                const AdamWScalars& scalars, ThreadPool& pool);
void adamw_f32_half(float* weight, const float* gradient, const HalfMoments& moments, int64_t count,
                    const AdamWScalars& scalars, ThreadPool& pool);
void adamw_bf16_half(bf16* weight, int16_t* remainder, const float* gradient, const HalfMoments& moments,
                     int64_t count, const AdamWScalars& scalars, ThreadPool& pool);
void adamw_f32_8bit(float* weight, const float* gradient, const CodedMoments& moments, int64_t count,
                    const AdamWScalars& scalars, ThreadPool& pool);
void adamw_bf16_8bit(bf16* weight, int16_t* remainder, const float* gradient, const CodedMoments& moments,
                     int64_t count, const AdamWScalars& scalars, ThreadPool& pool);

}  // namespace tessera
