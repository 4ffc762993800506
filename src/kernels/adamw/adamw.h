// One AdamW update of flat arrays in one pass over weights, gradients and moments. Loshchilov and Hutter,
// 2019; formulas and their order as in torch.optim.AdamW (single tensor, float32):
//
//   g *= gradient_scale     w *= 1 - lr wd      m = b1 m + (1 - b1) g     v = b2 v + (1 - b2) g^2
//   w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
//
// BF16 weights are one half of an exact float32 master weight; the other half is a 16-bit remainder:
//   bits(master) = (bits(w) << 16) + remainder
// w is the master rounded to nearest, ties away from zero, and -0x8000 <= remainder <= 0x7FFF is what
// rounding took or gave. A BF16 run with remainders is bit-equal to a float32 run.
// Subnormal values become zero (platform/subnormals.h). A master within half a
// bf16 step of the largest finite float32 shows as an infinite w while the master stays finite.
#pragma once

#include <bit>
#include <cstdint>

#include "base/float_types.h"
#include "platform/thread_pool.h"

namespace tessera {

inline float join_master(bf16 weight, int16_t remainder) {
  const uint32_t high = static_cast<uint32_t>(weight.bits) << 16;
  return std::bit_cast<float>(high + static_cast<uint32_t>(static_cast<int32_t>(remainder)));
}

inline bf16 master_weight(float master) {
  return bf16{static_cast<uint16_t>((std::bit_cast<uint32_t>(master) + 0x8000u) >> 16)};
}

inline int16_t master_remainder(float master) {
  return static_cast<int16_t>(std::bit_cast<uint32_t>(master) & 0xFFFFu);
}

// The scalars of one step, computed in double by adamw_scalars and rounded to float32 once.
struct AdamWScalars {
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

// `step` is t, from 1. weight_decay 0 makes decay 1.
AdamWScalars adamw_scalars(double learning_rate, double beta1, double beta2, double epsilon,
                           double weight_decay, int64_t step, double gradient_scale);

// `count` elements; arrays do not overlap. gradient is F32.
void adamw_f32(float* weight, const float* gradient, float* m, float* v, int64_t count,
               const AdamWScalars& scalars, ThreadPool& pool);
void adamw_bf16(bf16* weight, int16_t* remainder, const float* gradient, float* m, float* v, int64_t count,
                const AdamWScalars& scalars, ThreadPool& pool);

}  // namespace tessera
