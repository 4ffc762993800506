#include <algorithm>

#include "kernels/lion/lion_impl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/lion/lion_hwy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/block_code/block_code-inl.h"
#include "kernels/masters-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Updates the masters from i on; returns the new moment. Products and sums are rounded separately, never
// fused: bit-identical to the reference.
template <class D, class Access, class Masters, class V = hn::Vec<D>>
HWY_INLINE V update_vector(D d, Access access, const Masters& masters, int64_t i, V gradient, V momentum,
                           const LionScalars& scalars) {
  const V g = hn::Mul(gradient, hn::Set(d, scalars.gradient_scale));
  const V direction =
      hn::Add(hn::Mul(hn::Set(d, scalars.beta1), momentum), hn::Mul(hn::Set(d, scalars.one_minus_beta1), g));
  const auto moves = hn::Or(hn::Gt(direction, hn::Zero(d)), hn::Lt(direction, hn::Zero(d)));
  const V sign = hn::IfThenElse(moves, hn::CopySign(hn::Set(d, 1.0f), direction), direction);
  const V change = hn::Mul(hn::Set(d, scalars.learning_rate), sign);
  const V decayed = hn::Mul(masters.load(d, access, i), hn::Set(d, scalars.decay));
  masters.store(d, access, hn::Sub(decayed, change), i);
  return hn::Add(hn::Mul(hn::Set(d, scalars.beta2), momentum),
                 hn::Mul(hn::Set(d, scalars.one_minus_beta2), g));
}

template <class Masters>
HWY_INLINE void update(const Masters& masters, const float* gradient, float* m, int64_t count,
                       const LionScalars& scalars, ThreadPool& pool) {
  pool.parallel_blocks(count, kUpdateBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
    const FloatTag d;
    for_each_vector(d, end - begin, [&](auto access, int64_t offset) HWY_ATTR {
      const int64_t i = begin + offset, ahead = std::min(i + kUpdatePrefetch, end - 1);
      __builtin_prefetch(gradient + ahead, /*rw=*/0);
      __builtin_prefetch(m + ahead, /*rw=*/1);
      masters.prefetch(ahead, 1);
      const auto updated =
          update_vector(d, access, masters, i, access.load(d, gradient + i), access.load(d, m + i), scalars);
      access.store(d, updated, m + i);
    });
  });
}

template <class Masters>
HWY_INLINE void update_coded(const Masters& masters, const CodedMomentum& momentum, const float* gradient,
                             int64_t count, const LionScalars& scalars, ThreadPool& pool) {
  pool.parallel_blocks(count, kUpdateBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
    // By value: see adamw_hwy.cc.
    const auto update_block = [=](auto elements, int64_t i, const uint32_t* random) TESSERA_LOOP_BODY {
      const FloatTag d;
      prefetch_update(masters, gradient, i, kCodeBlock);
      BlockUpdate<kSignedMantissaBits> block(momentum.m, i);
      for (int64_t lane = 0; lane < kCodeBlock; lane += lanes(d)) {
        const auto access = elements.access(lane);
        const auto m = update_vector(d, access, masters, i + lane, access.load(d, gradient + i + lane),
                                     block.load(lane), scalars);
        block.keep(m, lane);
      }
      block.template store<0>(random);
    };
    for_each_code_block(begin, end, momentum.first_element, momentum.step, update_block);
  });
}

void update_f32_hwy(float* weight, const float* gradient, float* m, int64_t count, const LionScalars& scalars,
                    ThreadPool& pool) {
  update(WholeMasters{weight}, gradient, m, count, scalars, pool);
}

void update_bf16_hwy(bf16* weight, int16_t* remainder, const float* gradient, float* m, int64_t count,
                     const LionScalars& scalars, ThreadPool& pool) {
  update(SplitMasters{weight, remainder}, gradient, m, count, scalars, pool);
}

void update_f32_8bit_hwy(float* weight, const float* gradient, const CodedMomentum& momentum, int64_t count,
                         const LionScalars& scalars, ThreadPool& pool) {
  update_coded(WholeMasters{weight}, momentum, gradient, count, scalars, pool);
}

void update_bf16_8bit_hwy(bf16* weight, int16_t* remainder, const float* gradient,
                          const CodedMomentum& momentum, int64_t count, const LionScalars& scalars,
                          ThreadPool& pool) {
  update_coded(SplitMasters{weight, remainder}, momentum, gradient, count, scalars, pool);
}

const LionKernels kKernels = {.update_f32 = update_f32_hwy,
                              .update_bf16 = update_bf16_hwy,
                              .update_f32_8bit = update_f32_8bit_hwy,
                              .update_bf16_8bit = update_bf16_8bit_hwy};

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

std::vector<Implementation<LionKernels>> lion_hwy() { return TESSERA_HWY_TABLE(kKernels); }

}  // namespace tessera
#endif
