#include <algorithm>
#include <span>

#include "kernels/block_code/block_code.h"
#include "kernels/optimizer/element_update_impl.h"
#include "kernels/optimizer/formulas-inl.h"
#include "kernels/rounding_bits.h"
#include "platform/subnormals.h"

namespace tessera {
namespace {

// The moments of up to kCodeBlock elements, from element `begin` of their array on.
void load_moments(DType dtype, const std::byte* stored, int64_t begin, std::span<float> values) {
  if (is_block_code(dtype)) {
    float block[kCodeBlock];
    decode_block(dtype, stored + begin / kCodeBlock * kCodeBlockBytes, block);
    std::copy_n(block, values.size(), values.begin());
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t at = static_cast<size_t>(begin) + i;
    values[i] = dtype == DType::kF32 ? reinterpret_cast<const float*>(stored)[at]
                                     : to_float(reinterpret_cast<const bf16*>(stored)[at]);
  }
}

void store_moments(DType dtype, std::byte* stored, int64_t begin, std::span<const float> values,
                   std::span<const uint16_t> noise) {
  if (is_block_code(dtype)) {
    encode_block(dtype, values, noise, stored + begin / kCodeBlock * kCodeBlockBytes);
    return;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t at = static_cast<size_t>(begin) + i;
    if (dtype == DType::kF32) {
      reinterpret_cast<float*>(stored)[at] = values[i];
    } else {
      reinterpret_cast<bf16*>(stored)[at] = round_stochastically(values[i], noise[i]);
    }
  }
}

template <class Rule>
void update_elements_ref(const OptimizerBlock& block, MomentForm form, const typename Rule::Scalars& scalars,
                         ThreadPool& /*pool*/) {
  constexpr size_t kNumMoments = Rule::kMoments.size();
  const SubnormalsAreZero scope;  // as inside the pool
  const int64_t count = std::ssize(block.gradient);
  const auto as_it_is = [](float value) { return value; };
  with_masters(block.weights, block.remainders, [&](auto masters) {
    for (int64_t begin = 0; begin < count; begin += kCodeBlock) {
      const auto size = static_cast<size_t>(std::min(kCodeBlock, count - begin));
      float moments[kNumMoments][kCodeBlock];
      uint16_t noise[kNumMoments][kCodeBlock];
      for (size_t k = 0; k < kNumMoments; ++k) {
        load_moments(moment_dtype(form, Rule::kMoments[k]), block.state[k], begin,
                     std::span(moments[k]).first(size));
        for (int64_t i = 0; i < kCodeBlock; ++i) {
          const uint32_t bits = rounding_bits(scalars.step, block.first_element + begin + i);
          noise[k][i] = static_cast<uint16_t>(k == 0 ? bits : bits >> 16);
        }
      }
      for (size_t i = 0; i < size; ++i) {
        float of_element[kNumMoments];
        for (size_t k = 0; k < kNumMoments; ++k) of_element[k] = moments[k][i];
        const int64_t at = begin + static_cast<int64_t>(i);
        masters.store(at, HWY_NAMESPACE::update_element(scalars, as_it_is, masters.load(at),
                                                        block.gradient[static_cast<size_t>(at)], of_element));
        for (size_t k = 0; k < kNumMoments; ++k) moments[k][i] = of_element[k];
      }
      for (size_t k = 0; k < kNumMoments; ++k) {
        store_moments(moment_dtype(form, Rule::kMoments[k]), block.state[k], begin,
                      std::span(moments[k]).first(size), noise[k]);
      }
    }
  });
}

}  // namespace

#define TESSERA_DEFINE_REF(Rule, name)                                  \
  template <>                                                           \
  std::vector<Implementation<UpdateKernels<Rule>>> update_ref<Rule>() { \
    return {{"ref", Isa::kRef, {update_elements_ref<Rule>}}};           \
  }
TESSERA_UPDATE_RULES(TESSERA_DEFINE_REF)

}  // namespace tessera
