#include <cmath>

#include "kernels/adamw/adamw_impl.h"
#include "platform/subnormals.h"

namespace tessera {
namespace {

// Returns the new weight. Every operation is rounded to float32, in the order of torch.optim.AdamW.
float update_element(float weight, float gradient, float* m, float* v, const AdamWScalars& scalars) {
  const float g = gradient * scalars.gradient_scale;
  const float decayed = weight * scalars.decay;
  *m = scalars.beta1 * *m + scalars.one_minus_beta1 * g;
  *v = scalars.beta2 * *v + scalars.one_minus_beta2 * g * g;
  const float denominator = std::sqrt(*v) / scalars.bias_correction2_sqrt + scalars.epsilon;
  return decayed - scalars.step_size * (*m / denominator);
}

void update_f32_ref(float* weight, const float* gradient, float* m, float* v, int64_t count,
                    const AdamWScalars& scalars, ThreadPool& /*pool*/) {
  const SubnormalsAreZero scope;  // as inside the pool
  for (int64_t i = 0; i < count; ++i) {
    weight[i] = update_element(weight[i], gradient[i], m + i, v + i, scalars);
  }
}

void update_bf16_ref(bf16* weight, int16_t* remainder, const float* gradient, float* m, float* v,
                     int64_t count, const AdamWScalars& scalars, ThreadPool& /*pool*/) {
  const SubnormalsAreZero scope;  // as inside the pool
  for (int64_t i = 0; i < count; ++i) {
    const float master = join_master(weight[i], remainder[i]);
    const float updated = update_element(master, gradient[i], m + i, v + i, scalars);
    weight[i] = master_weight(updated);
    remainder[i] = master_remainder(updated);
  }
}

// The moments become what is stored of them.
float update_half_element(float weight, float gradient, const HalfMoments& moments, int64_t i,
                          const AdamWScalars& scalars) {
  float m = to_float(moments.m[i]), v = to_float(moments.v[i]);
  const float updated = update_element(weight, gradient, &m, &v, scalars);
  const uint32_t bits = rounding_bits(scalars.step, moments.first_element + i);
  moments.m[i] = round_stochastically(m, bits & 0xFFFF);
  moments.v[i] = round_stochastically(v, bits >> 16);
  return updated;
}

void update_f32_half_ref(float* weight, const float* gradient, const HalfMoments& moments, int64_t count,
                         const AdamWScalars& scalars, ThreadPool& /*pool*/) {
  const SubnormalsAreZero scope;
  for (int64_t i = 0; i < count; ++i) {
    weight[i] = update_half_element(weight[i], gradient[i], moments, i, scalars);
  }
}

void update_bf16_half_ref(bf16* weight, int16_t* remainder, const float* gradient, const HalfMoments& moments,
                          int64_t count, const AdamWScalars& scalars, ThreadPool& /*pool*/) {
  const SubnormalsAreZero scope;
  for (int64_t i = 0; i < count; ++i) {
    const float master = join_master(weight[i], remainder[i]);
    const float updated = update_half_element(master, gradient[i], moments, i, scalars);
    weight[i] = master_weight(updated);
    remainder[i] = master_remainder(updated);
  }
}

}  // namespace

std::vector<Implementation<AdamWKernels>> adamw_ref() {
  return {{"ref",
           Isa::kRef,
           {.update_f32 = update_f32_ref,
            .update_bf16 = update_bf16_ref,
            .update_f32_half = update_f32_half_ref,
            .update_bf16_half = update_bf16_half_ref}}};
}

}  // namespace tessera
