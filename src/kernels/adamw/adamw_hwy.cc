#include <algorithm>

#include "kernels/adamw/adamw_impl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adamw/adamw_hwy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/block_code/block_code-inl.h"
#include "kernels/masters-inl.h"
#include "kernels/rounding_bits-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Products and sums are rounded separately, never fused: bit-identical to the reference. The update moves 28
// bytes per element and is memory-bound: from cache the same code runs twice as fast.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V update_vector(D d, V weight, V gradient, V* m, V* v, const AdamWScalars& scalars) {
  const V g = hn::Mul(gradient, hn::Set(d, scalars.gradient_scale));
  const V decayed = hn::Mul(weight, hn::Set(d, scalars.decay));
  *m = hn::Add(hn::Mul(hn::Set(d, scalars.beta1), *m), hn::Mul(hn::Set(d, scalars.one_minus_beta1), g));
  *v = hn::Add(hn::Mul(hn::Set(d, scalars.beta2), *v),
               hn::Mul(hn::Mul(hn::Set(d, scalars.one_minus_beta2), g), g));
  const V denominator =
      hn::Add(hn::Div(hn::Sqrt(*v), hn::Set(d, scalars.bias_correction2_sqrt)), hn::Set(d, scalars.epsilon));
  return hn::Sub(decayed, hn::Mul(hn::Set(d, scalars.step_size), hn::Div(*m, denominator)));
}

// The moments of a block: float32 ...
struct WholeMoments {
  float *m, *v;

  // Calls body(access, i, random bits from i on) for all vectors of [begin, end).
  template <class D, class Body>
  HWY_INLINE void for_each(D d, int64_t begin, int64_t end, const Body& body) const {
    for_each_vector(d, end - begin,
                    [&](auto access, int64_t i) HWY_ATTR { body(access, begin + i, nullptr); });
  }
  template <class D, class Access>
  HWY_INLINE void store(D d, Access access, hn::Vec<D> value, float* to, const uint32_t* /*random*/,
                        int /*shift*/) const {
    access.store(d, value, to);
  }
};

// ... or BF16, rounded stochastically.
struct RoundedMoments {
  bf16 *m, *v;
  int64_t first_element, step;

  template <class D, class Body>
  HWY_INLINE void for_each(D d, int64_t begin, int64_t end, const Body& body) const {
    // With room for the vector of the last elements.
    uint32_t bits[kRoundingBatch + hn::MaxLanes(D())] = {};
    while (begin < end) {
      const int64_t group = (first_element + begin) / kRoundingGroup;
      const int64_t place = (first_element + begin) % kRoundingGroup;
      const int64_t count = std::min(end - begin, kRoundingBatch - place);
      fill_rounding_bits(step, group, bits);
      for_each_vector(d, count,
                      [&](auto access, int64_t i) HWY_ATTR { body(access, begin + i, bits + place + i); });
      begin += count;
    }
  }
  // `shift`: of the 16 random bits within the 32 of an element.
  template <class D, class Access>
  HWY_INLINE void store(D /*d*/, Access access, hn::Vec<D> value, bf16* to, const uint32_t* random,
                        int shift) const {
    const hn::Rebind<uint32_t, D> d32;
    const hn::Rebind<uint16_t, D> d16;
    const auto words = hn::LoadU(d32, random);
    const auto noise = shift == 0 ? hn::And(words, hn::Set(d32, 0xFFFFu)) : hn::ShiftRight<16>(words);
    const auto rounded = hn::ShiftRight<16>(hn::Add(hn::BitCast(d32, value), noise));
    access.store_raw(d16, hn::TruncateTo(d16, rounded), &to->bits);
  }
};

template <class Masters, class Moments>
HWY_INLINE void update(const Masters& masters, const Moments& moments, const float* gradient, int64_t count,
                       const AdamWScalars& scalars, ThreadPool& pool) {
  pool.parallel_blocks(count, kUpdateBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
    const FloatTag d;
    moments.for_each(d, begin, end, [&](auto access, int64_t i, const uint32_t* random) HWY_ATTR {
      const int64_t ahead = std::min(i + kUpdatePrefetch, end - 1);
      __builtin_prefetch(gradient + ahead, /*rw=*/0);
      __builtin_prefetch(moments.m + ahead, /*rw=*/1);
      __builtin_prefetch(moments.v + ahead, /*rw=*/1);
      masters.prefetch(ahead, 1);
      auto m = access.load(d, moments.m + i), v = access.load(d, moments.v + i);
      const auto updated =
          update_vector(d, masters.load(d, access, i), access.load(d, gradient + i), &m, &v, scalars);
      moments.store(d, access, m, moments.m + i, random, 0);
      moments.store(d, access, v, moments.v + i, random, 16);
      masters.store(d, access, updated, i);
    });
  });
}

template <class Masters>
HWY_INLINE void update_coded(const Masters& masters, const CodedMoments& moments, const float* gradient,
                             int64_t count, const AdamWScalars& scalars, ThreadPool& pool) {
  pool.parallel_blocks(count, kUpdateBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
    // By value: the compiler must assume that a store of codes, which are bytes, changes what it can reach.
    const auto update_block = [=](auto elements, int64_t i, const uint32_t* random) TESSERA_LOOP_BODY {
      const FloatTag d;
      prefetch_update(masters, gradient, i, kCodeBlock);
      BlockUpdate<kSignedMantissaBits> m_block(moments.m, i);
      BlockUpdate<kSquareMantissaBits> v_block(moments.v, i);
      for (int64_t lane = 0; lane < kCodeBlock; lane += lanes(d)) {
        const auto access = elements.access(lane);
        const auto root = v_block.load(lane);
        auto m = m_block.load(lane), v = hn::Mul(root, root);
        const auto updated = update_vector(d, masters.load(d, access, i + lane),
                                           access.load(d, gradient + i + lane), &m, &v, scalars);
        m_block.keep(m, lane);
        v_block.keep(hn::Sqrt(v), lane);
        masters.store(d, access, updated, i + lane);
      }
      m_block.template store<0>(random);
      v_block.template store<16>(random);
    };
    for_each_code_block(begin, end, moments.first_element, scalars.step, update_block);
  });
}

void update_f32_hwy(float* weight, const float* gradient, float* m, float* v, int64_t count,
                    const AdamWScalars& scalars, ThreadPool& pool) {
  update(WholeMasters{weight}, WholeMoments{m, v}, gradient, count, scalars, pool);
}

void update_bf16_hwy(bf16* weight, int16_t* remainder, const float* gradient, float* m, float* v,
                     int64_t count, const AdamWScalars& scalars, ThreadPool& pool) {
  update(SplitMasters{weight, remainder}, WholeMoments{m, v}, gradient, count, scalars, pool);
}

void update_f32_half_hwy(float* weight, const float* gradient, const HalfMoments& moments, int64_t count,
                         const AdamWScalars& scalars, ThreadPool& pool) {
  update(WholeMasters{weight}, RoundedMoments{moments.m, moments.v, moments.first_element, scalars.step},
         gradient, count, scalars, pool);
}

void update_bf16_half_hwy(bf16* weight, int16_t* remainder, const float* gradient, const HalfMoments& moments,
                          int64_t count, const AdamWScalars& scalars, ThreadPool& pool) {
  update(SplitMasters{weight, remainder},
         RoundedMoments{moments.m, moments.v, moments.first_element, scalars.step}, gradient, count, scalars,
         pool);
}

void update_f32_8bit_hwy(float* weight, const float* gradient, const CodedMoments& moments, int64_t count,
                         const AdamWScalars& scalars, ThreadPool& pool) {
  update_coded(WholeMasters{weight}, moments, gradient, count, scalars, pool);
}

void update_bf16_8bit_hwy(bf16* weight, int16_t* remainder, const float* gradient,
                          const CodedMoments& moments, int64_t count, const AdamWScalars& scalars,
                          ThreadPool& pool) {
  update_coded(SplitMasters{weight, remainder}, moments, gradient, count, scalars, pool);
}

const AdamWKernels kKernels = {.update_f32 = update_f32_hwy,
                               .update_bf16 = update_bf16_hwy,
                               .update_f32_half = update_f32_half_hwy,
                               .update_bf16_half = update_bf16_half_hwy,
                               .update_f32_8bit = update_f32_8bit_hwy,
                               .update_bf16_8bit = update_bf16_8bit_hwy};

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

std::vector<Implementation<AdamWKernels>> adamw_hwy() { return TESSERA_HWY_TABLE(kKernels); }

}  // namespace tessera
#endif
