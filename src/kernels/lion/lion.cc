#include "kernels/lion/lion.h"

#include "kernels/lion/lion_impl.h"

namespace tessera {

const DispatchTable<LionKernels>& lion_table() {
  static const DispatchTable<LionKernels> table("lion", concat(lion_hwy(), lion_ref()));
  return table;
}

LionScalars lion_scalars(double learning_rate, double beta1, double beta2, double weight_decay,
                         double gradient_scale) {
  return {.gradient_scale = static_cast<float>(gradient_scale),
          .decay = static_cast<float>(1 - learning_rate * weight_decay),
          .learning_rate = static_cast<float>(learning_rate),
          .beta1 = static_cast<float>(beta1),
          .one_minus_beta1 = static_cast<float>(1 - beta1),
          .beta2 = static_cast<float>(beta2),
          .one_minus_beta2 = static_cast<float>(1 - beta2)};
}

void lion_f32(float* weight, const float* gradient, float* m, int64_t count, const LionScalars& scalars,
              ThreadPool& pool) {
  lion_table().chosen().update_f32(weight, gradient, m, count, scalars, pool);
}

void lion_bf16(bf16* weight, int16_t* remainder, const float* gradient, float* m, int64_t count,
               const LionScalars& scalars, ThreadPool& pool) {
  lion_table().chosen().update_bf16(weight, remainder, gradient, m, count, scalars, pool);
}

void lion_f32_8bit(float* weight, const float* gradient, const CodedMomentum& momentum, int64_t count,
                   const LionScalars& scalars, ThreadPool& pool) {
  lion_table().chosen().update_f32_8bit(weight, gradient, momentum, count, scalars, pool);
}

void lion_bf16_8bit(bf16* weight, int16_t* remainder, const float* gradient, const CodedMomentum& momentum,
                    int64_t count, const LionScalars& scalars, ThreadPool& pool) {
  lion_table().chosen().update_bf16_8bit(weight, remainder, gradient, momentum, count, scalars, pool);
}

}  // namespace tessera
