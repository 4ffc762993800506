#include <algorithm>

#include "kernels/adamw/adamw_impl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/adamw/adamw_hwy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/masters-inl.h"
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

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void fill_rounding_bits(int64_t step, int64_t group, uint32_t* bits) {
  for (int64_t i = 0; i < kRoundingGroup; ++i) bits[i] = rounding_bits(step, group * kRoundingGroup + i);
}
#else
// The upper and lower halves of 32-bit products.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V product_halves(D d, V a, uint32_t factor, V* low) {
  const hn::Repartition<uint64_t, D> d64;
  const V b = hn::Set(d, factor);
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(d, hn::ShiftRight<32>(hn::BitCast(d64, a))), b);
  *low = hn::Mul(a, b);
  return hn::OddEven(hn::BitCast(d, odd), hn::BitCast(d, hn::ShiftRight<32>(even)));
}

// rounding_bits() of the elements of a group: philox4x32() of base/rng.h for kRoundingLanes counters at once.
HWY_INLINE void fill_rounding_bits(int64_t step, int64_t group, uint32_t* bits) {
  const hn::CappedTag<uint32_t, kRoundingLanes> d;
  using V = hn::Vec<decltype(d)>;
  for (int64_t lane = 0; lane < kRoundingLanes; lane += lanes(d)) {
    const auto first = static_cast<uint64_t>(group * kRoundingLanes + lane);  // a multiple of lanes(d)
    V c0 = hn::Or(hn::Set(d, static_cast<uint32_t>(first)), hn::Iota(d, 0));
    V c1 = hn::Set(d, static_cast<uint32_t>(first >> 32));
    V c2 = hn::Set(d, static_cast<uint32_t>(kRoundingStream));
    V c3 = hn::Set(d, static_cast<uint32_t>(kRoundingStream >> 32));
    auto k0 = static_cast<uint32_t>(step), k1 = static_cast<uint32_t>(static_cast<uint64_t>(step) >> 32);
    for (int round = 0; round < 10; ++round) {
      V low0, low1;
      const V high0 = product_halves(d, c0, 0xD2511F53u, &low0);
      const V high1 = product_halves(d, c2, 0xCD9E8D57u, &low1);
      c0 = hn::Xor(hn::Xor(high1, c1), hn::Set(d, k0));
      c2 = hn::Xor(hn::Xor(high0, c3), hn::Set(d, k1));
      c1 = low1;
      c3 = low0;
      k0 += 0x9E3779B9u;
      k1 += 0xBB67AE85u;
    }
    hn::StoreU(c0, d, bits + lane);
    hn::StoreU(c1, d, bits + kRoundingLanes + lane);
    hn::StoreU(c2, d, bits + 2 * kRoundingLanes + lane);
    hn::StoreU(c3, d, bits + 3 * kRoundingLanes + lane);
  }
}
#endif

// ... or BF16, rounded stochastically.
struct RoundedMoments {
  bf16 *m, *v;
  int64_t first_element, step;

  template <class D, class Body>
  HWY_INLINE void for_each(D d, int64_t begin, int64_t end, const Body& body) const {
    // With room for the vector of the last elements.
    uint32_t bits[kRoundingGroup + hn::MaxLanes(D())] = {};
    while (begin < end) {
      const int64_t group = (first_element + begin) / kRoundingGroup;
      const int64_t place = (first_element + begin) % kRoundingGroup;
      const int64_t count = std::min(end - begin, kRoundingGroup - place);
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
      masters.prefetch(ahead);
      auto m = access.load(d, moments.m + i), v = access.load(d, moments.v + i);
      const auto updated =
          update_vector(d, masters.load(d, access, i), access.load(d, gradient + i), &m, &v, scalars);
      moments.store(d, access, m, moments.m + i, random, 0);
      moments.store(d, access, v, moments.v + i, random, 16);
      masters.store(d, access, updated, i);
    });
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

const AdamWKernels kKernels = {.update_f32 = update_f32_hwy,
                               .update_bf16 = update_bf16_hwy,
                               .update_f32_half = update_f32_half_hwy,
                               .update_bf16_half = update_bf16_half_hwy};

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

std::vector<Implementation<AdamWKernels>> adamw_hwy() { return TESSERA_HWY_TABLE(kKernels); }

}  // namespace tessera
#endif
