#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/adamw/adamw_impl.h"
#include "kernels/block_code/block_code.h"
#include "kernels/rounding_bits.h"
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

// Updates weights of a block, which are read and written by master(i) and set_master(i, value).
template <typename Read, typename Write>
void update_coded(const float* gradient, const CodedMoments& moments, int64_t count,
                  const AdamWScalars& scalars, const Read& master, const Write& set_master) {
  const SubnormalsAreZero scope;
  for (int64_t begin = 0; begin < count; begin += kCodeBlock) {
    const int64_t size = std::min(kCodeBlock, count - begin);
    std::byte* const m_codes = moments.m + begin / kCodeBlock * kCodeBlockBytes;
    std::byte* const v_codes = moments.v + begin / kCodeBlock * kCodeBlockBytes;
    float m[kCodeBlock], v[kCodeBlock];
    uint16_t m_noise[kCodeBlock], v_noise[kCodeBlock];
    decode_block(DType::kI8, m_codes, m);
    decode_block(DType::kU8, v_codes, v);
    for (int64_t i = 0; i < kCodeBlock; ++i) {
      const uint32_t bits = rounding_bits(scalars.step, moments.first_element + begin + i);
      m_noise[i] = static_cast<uint16_t>(bits);
      v_noise[i] = static_cast<uint16_t>(bits >> 16);
      if (i >= size) continue;
      set_master(begin + i, update_element(master(begin + i), gradient[begin + i], m + i, v + i, scalars));
    }
    encode_block(DType::kI8, std::span(m).first(static_cast<size_t>(size)), m_noise, m_codes);
    encode_block(DType::kU8, std::span(v).first(static_cast<size_t>(size)), v_noise, v_codes);
  }
}

void update_f32_8bit_ref(float* weight, const float* gradient, const CodedMoments& moments, int64_t count,
                         const AdamWScalars& scalars, ThreadPool& /*pool*/) {
  update_coded(
      gradient, moments, count, scalars, [&](int64_t i) { return weight[i]; },
      [&](int64_t i, float updated) { weight[i] = updated; });
}

void update_bf16_8bit_ref(bf16* weight, int16_t* remainder, const float* gradient,
                          const CodedMoments& moments, int64_t count, const AdamWScalars& scalars,
                          ThreadPool& /*pool*/) {
  update_coded(
      gradient, moments, count, scalars, [&](int64_t i) { return join_master(weight[i], remainder[i]); },
      [&](int64_t i, float updated) {
        weight[i] = master_weight(updated);
        remainder[i] = master_remainder(updated);
      });
}

}  // namespace

std::vector<Implementation<AdamWKernels>> adamw_ref() {
  return {{"ref",
           Isa::kRef,
           {.update_f32 = update_f32_ref,
            .update_bf16 = update_bf16_ref,
            .update_f32_half = update_f32_half_ref,
            .update_bf16_half = update_bf16_half_ref,
            .update_f32_8bit = update_f32_8bit_ref,
            .update_bf16_8bit = update_bf16_8bit_ref}}};
}

}  // namespace tessera
