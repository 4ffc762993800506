#include "kernels/adamw/adamw.h"

#include <cmath>

#include "base/error.h"
#include "kernels/adamw/adamw_impl.h"

namespace tessera {

const DispatchTable<AdamWKernels>& adamw_table() {
  static const DispatchTable<AdamWKernels> table("adamw", concat(adamw_hwy(), adamw_ref()));
  return table;
}

AdamWScalars adamw_scalars(double learning_rate, double beta1, double beta2, double epsilon,
                           double weight_decay, int64_t step, double gradient_scale) {
  TESSERA_CHECK(step >= 1, "step {}", step);
  const double bias_correction1 = 1 - std::pow(beta1, static_cast<double>(step));
  const double bias_correction2 = 1 - std::pow(beta2, static_cast<double>(step));
  return {.step = step,
          .gradient_scale = static_cast<float>(gradient_scale),
          .decay = static_cast<float>(1 - learning_rate * weight_decay),
          .beta1 = static_cast<float>(beta1),
          .one_minus_beta1 = static_cast<float>(1 - beta1),
          .beta2 = static_cast<float>(beta2),
          .one_minus_beta2 = static_cast<float>(1 - beta2),
          .bias_correction2_sqrt = static_cast<float>(std::sqrt(bias_correction2)),
          .epsilon = static_cast<float>(epsilon),
          .step_size = static_cast<float>(learning_rate / bias_correction1)};
}

void adamw_f32(float* weight, const float* gradient, float* m, float* v, int64_t count,
               const AdamWScalars& scalars, ThreadPool& pool) {
  adamw_table().chosen().update_f32(weight, gradient, m, v, count, scalars, pool);
}

void adamw_bf16(bf16* weight, int16_t* remainder, const float* gradient, float* m, float* v, int64_t count,
                const AdamWScalars& scalars, ThreadPool& pool) {
  adamw_table().chosen().update_bf16(weight, remainder, gradient, m, v, count, scalars, pool);
}

void adamw_f32_half(float* weight, const float* gradient, const HalfMoments& moments, int64_t count,
                    const AdamWScalars& scalars, ThreadPool& pool) {
  adamw_table().chosen().update_f32_half(weight, gradient, moments, count, scalars, pool);
}

void adamw_bf16_half(bf16* weight, int16_t* remainder, const float* gradient, const HalfMoments& moments,
                     int64_t count, const AdamWScalars& scalars, ThreadPool& pool) {
  adamw_table().chosen().update_bf16_half(weight, remainder, gradient, moments, count, scalars, pool);
}

void adamw_f32_8bit(float* weight, const float* gradient, const CodedMoments& moments, int64_t count,
                    const AdamWScalars& scalars, ThreadPool& pool) {
  adamw_table().chosen().update_f32_8bit(weight, gradient, moments, count, scalars, pool);
}

void adamw_bf16_8bit(bf16* weight, int16_t* remainder, const float* gradient, const CodedMoments& moments,
                     int64_t count, const AdamWScalars& scalars, ThreadPool& pool) {
  adamw_table().chosen().update_bf16_8bit(weight, remainder, gradient, moments, count, scalars, pool);
}

}  // namespace tessera
