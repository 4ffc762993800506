// AdamW of one element, for the kernels of all forms of its state.
#pragma once

#include "kernels/optimizer/adamw.h"
#include "devices/cuda/numbers.cuh"

namespace tessera::cuda {

// Every operation is rounded separately, as in torch.optim.AdamW. Returns the new weight.
__device__ inline float update_element(float weight, float gradient, float* m, float* v,
                                       const AdamWScalars& scalars) {
  const float g = __fmul_rn(gradient, scalars.gradient_scale);
  const float decayed = __fmul_rn(weight, scalars.decay);
  *m = __fadd_rn(__fmul_rn(scalars.beta1, *m), __fmul_rn(scalars.one_minus_beta1, g));
  *v = __fadd_rn(__fmul_rn(scalars.beta2, *v), __fmul_rn(__fmul_rn(scalars.one_minus_beta2, g), g));
  const float denominator =
      __fadd_rn(__fdiv_rn(__fsqrt_rn(*v), scalars.bias_correction2_sqrt), scalars.epsilon);
  return __fsub_rn(decayed, __fmul_rn(scalars.step_size, __fdiv_rn(*m, denominator)));
}

// The bits of a value that is going to be rounded by adding to them: the card's own NaN would become -0.
__device__ inline uint32_t bits_to_round(float value) {
  return value == value ? __float_as_uint(value) : 0x7FC00000u;
}

// join_master(), master_weight() and master_remainder() of base/float_types.h.
__device__ inline float load_master(bf16 weight, int16_t remainder) {
  return __uint_as_float((static_cast<uint32_t>(weight.bits) << 16) +
                         static_cast<uint32_t>(static_cast<int32_t>(remainder)));
}
__device__ inline void store_master(float master, bf16* weight, int16_t* remainder) {
  const uint32_t bits = bits_to_round(master);
  weight->bits = static_cast<uint16_t>((bits + 0x8000u) >> 16);
  *remainder = static_cast<int16_t>(bits & 0xFFFFu);
}

}  // namespace tessera::cuda
