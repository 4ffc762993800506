// The random bits of kernels/rounding_bits.h, for vector code.
//
// Included once per instruction set (Highway's foreach_target), hence the unusual guard.
#if defined(TESSERA_KERNELS_ROUNDING_BITS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_ROUNDING_BITS_INL_H_
#undef TESSERA_KERNELS_ROUNDING_BITS_INL_H_
#else
#define TESSERA_KERNELS_ROUNDING_BITS_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>

#include "kernels/rounding_bits.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

#if HWY_TARGET == HWY_SCALAR
HWY_INLINE void fill_rounding_bits(int64_t step, int64_t group, uint32_t* bits) {
  for (int64_t i = 0; i < kRoundingGroup; ++i) bits[i] = rounding_bits(step, group * kRoundingGroup + i);
}
#else
// The upper and lower halves of 32-bit products.
template <class D, class V = hn::Vec<D> >
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

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // guard per target
