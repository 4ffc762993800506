#include "kernels/lion/lion_impl.h"
#include "platform/subnormals.h"

namespace tessera {
namespace {

// Returns the new weight.
float update_element(float weight, float gradient, float* m, const LionScalars& scalars) {
  const float g = gradient * scalars.gradient_scale;
  const float direction = scalars.beta1 * *m + scalars.one_minus_beta1 * g;
  const float sign = direction > 0 ? 1.0f : direction < 0 ? -1.0f : direction;
  *m = scalars.beta2 * *m + scalars.one_minus_beta2 * g;
  return weight * scalars.decay - scalars.learning_rate * sign;
}

void update_f32_ref(float* weight, const float* gradient, float* m, int64_t count, const LionScalars& scalars,
                    ThreadPool& /*pool*/) {
  const SubnormalsAreZero scope;  // as inside the pool
  for (int64_t i = 0; i < count; ++i) weight[i] = update_element(weight[i], gradient[i], m + i, scalars);
}

void update_bf16_ref(bf16* weight, int16_t* remainder, const float* gradient, float* m, int64_t count,
                     const LionScalars& scalars, ThreadPool& /*pool*/) {
  const SubnormalsAreZero scope;  // as inside the pool
  for (int64_t i = 0; i < count; ++i) {
    const float master = join_master(weight[i], remainder[i]);
    const float updated = update_element(master, gradient[i], m + i, scalars);
    weight[i] = master_weight(updated);
    remainder[i] = master_remainder(updated);
  }
}

}  // namespace

std::vector<Implementation<LionKernels>> lion_ref() {
  return {{"ref", Isa::kRef, {.update_f32 = update_f32_ref, .update_bf16 = update_bf16_ref}}};
}

}  // namespace tessera
