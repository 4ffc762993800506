#include <algorithm>
#include <span>

#include "kernels/block_code/block_code.h"
#include "kernels/lion/lion_impl.h"
#include "kernels/rounding_bits.h"
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

// Updates weights that are read and written by master(i) and set_master(i, value).
template <typename Read, typename Write>
void update_coded(const float* gradient, const CodedMomentum& momentum, int64_t count,
                  const LionScalars& scalars, const Read& master, const Write& set_master) {
  const SubnormalsAreZero scope;
  for (int64_t begin = 0; begin < count; begin += kCodeBlock) {
    const int64_t size = std::min(kCodeBlock, count - begin);
    std::byte* const codes = momentum.m + begin / kCodeBlock * kCodeBlockBytes;
    float m[kCodeBlock];
    uint16_t noise[kCodeBlock];
    decode_block(DType::kI8, codes, m);
    for (int64_t i = 0; i < kCodeBlock; ++i) {
      noise[i] = static_cast<uint16_t>(rounding_bits(momentum.step, momentum.first_element + begin + i));
      if (i < size)
        set_master(begin + i, update_element(master(begin + i), gradient[begin + i], m + i, scalars));
    }
    encode_block(DType::kI8, std::span(m).first(static_cast<size_t>(size)), noise, codes);
  }
}

void update_f32_8bit_ref(float* weight, const float* gradient, const CodedMomentum& momentum, int64_t count,
                         const LionScalars& scalars, ThreadPool& /*pool*/) {
  update_coded(
      gradient, momentum, count, scalars, [&](int64_t i) { return weight[i]; },
      [&](int64_t i, float updated) { weight[i] = updated; });
}

void update_bf16_8bit_ref(bf16* weight, int16_t* remainder, const float* gradient,
                          const CodedMomentum& momentum, int64_t count, const LionScalars& scalars,
                          ThreadPool& /*pool*/) {
  update_coded(
      gradient, momentum, count, scalars, [&](int64_t i) { return join_master(weight[i], remainder[i]); },
      [&](int64_t i, float updated) {
        weight[i] = master_weight(updated);
        remainder[i] = master_remainder(updated);
      });
}

}  // namespace

std::vector<Implementation<LionKernels>> lion_ref() {
  return {{"ref",
           Isa::kRef,
           {.update_f32 = update_f32_ref,
            .update_bf16 = update_bf16_ref,
            .update_f32_8bit = update_f32_8bit_ref,
            .update_bf16_8bit = update_bf16_8bit_ref}}};
}

}  // namespace tessera
