// One Lion update of flat arrays. Chen et al., "Symbolic discovery of optimization algorithms", 2023, with
// decoupled weight decay, in the order of their implementation:
//
//   g *= gradient_scale     w *= 1 - lr wd      w -= lr sign(b1 m + (1 - b1) g)     m = b2 m + (1 - b2) g
//
// sign(0) = 0. A moment in 8-bit codes (kernels/block_code) is rounded to them stochastically after the
// update. BF16 weights are one half of an exact float32 master weight, 16-bit remainders the other
// (base/float_types.h). Every operation is rounded to float32; subnormal values become zero
// (platform/subnormals.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/float_types.h"
#include "platform/thread_pool.h"

namespace tessera {

struct LionScalars {
  float gradient_scale;
  float decay;  // 1 - lr wd
  float learning_rate;
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
};

// Computed in double, rounded to float32 once.
LionScalars lion_scalars(double learning_rate, double beta1, double beta2, double weight_decay,
                         double gradient_scale);

// The moment of elements [first_element, ...) of all parameters in I8 codes, in an update of this step. The
// first of them begins a block, and so do the codes.
struct CodedMomentum {
  std::byte* m;
  int64_t first_element;
  int64_t step;
};

// `count` elements; arrays do not overlap. gradient and m are F32.
void lion_f32(float* weight, const float* gradient, float* m, int64_t count, const LionScalars& scalars,
              ThreadPool& pool);
void lion_bf16(bf16* weight, int16_t* remainder, const float* gradient, float* m, int64_t count,
               const LionScalars& scalars, ThreadPool& pool);
void lion_f32_8bit(float* weight, const float* gradient, const CodedMomentum& momentum, int64_t count,
                   const LionScalars& scalars, ThreadPool& pool);
void lion_bf16_8bit(bf16* weight, int16_t* remainder, const float* gradient, const CodedMomentum& momentum,
                    int64_t count, const LionScalars& scalars, ThreadPool& pool);

}  // namespace tessera
