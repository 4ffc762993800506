// What the vector kernels share: float32 vectors from and to BF16 or F32 memory, loops with remainders that
// never read or write outside their range, and the exponential.
//
// Included once per instruction set (Highway's foreach_target), hence the unusual guard.
#if defined(TESSERA_KERNELS_VECTOR_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_VECTOR_INL_H_
#undef TESSERA_KERNELS_VECTOR_INL_H_
#else
#define TESSERA_KERNELS_VECTOR_INL_H_
#endif

#include <hwy/highway.h>

#include <cstdint>
#include <cstring>

#include "base/float_types.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Vectors of float32, as wide as the instruction set has them.
using FloatTag = hn::ScalableTag<float>;

template <class D>
HWY_INLINE int64_t lanes(D d) {
  return static_cast<int64_t>(hn::Lanes(d));
}

// Lanes(d) elements as float32.
template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const float* from) {
  return hn::LoadU(d, from);
}
template <class D>
HWY_INLINE hn::Vec<D> load_floats(D d, const bf16* from) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  return hn::BitCast(d, hn::ShiftLeft<16>(hn::PromoteTo(d32, hn::LoadU(d16, &from->bits))));
}

// Round to nearest, ties to even; NaN stays NaN: as to_bf16.
template <class D>
HWY_INLINE void store_floats(D d, hn::Vec<D> value, float* to) {
  hn::StoreU(value, d, to);
}
template <class D>
HWY_INLINE void store_floats(D /*d*/, hn::Vec<D> value, bf16* to) {
  const hn::Rebind<uint16_t, D> d16;
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = hn::BitCast(d32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFFu)));
  const auto quiet_nan = hn::Or(bits, hn::Set(d32, 0x400000u));
  const auto chosen = hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(value)), quiet_nan, rounded);
  hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(chosen)), d16, &to->bits);
}

// Access of for_each_vector to a whole vector...
struct WholeVector {
  template <class D, typename T>
  HWY_INLINE hn::Vec<D> load(D d, const T* from) const {
    return load_floats(d, from);
  }
  template <class D, typename T>
  HWY_INLINE void store(D d, hn::Vec<D> value, T* to) const {
    store_floats(d, value, to);
  }
  // Integers as they are.
  template <class D, typename T>
  HWY_INLINE hn::Vec<D> load_raw(D d, const T* from) const {
    return hn::LoadU(d, from);
  }
  template <class D, typename T>
  HWY_INLINE void store_raw(D d, hn::Vec<D> value, T* to) const {
    hn::StoreU(value, d, to);
  }
};

// ... and to the first `count` lanes at the end of a range; the others load as 0. Goes through the stack:
// masked loads of 16-bit elements may touch memory outside on AVX2.
struct PartialVector {
  size_t count;

  template <class D, typename T>
  HWY_INLINE hn::Vec<D> load(D d, const T* from) const {
    T buffer[hn::MaxLanes(D())] = {};
    std::memcpy(buffer, from, count * sizeof(T));
    return load_floats(d, buffer);
  }
  template <class D, typename T>
  HWY_INLINE void store(D d, hn::Vec<D> value, T* to) const {
    T buffer[hn::MaxLanes(D())];
    store_floats(d, value, buffer);
    std::memcpy(to, buffer, count * sizeof(T));
  }
  template <class D, typename T>
  HWY_INLINE hn::Vec<D> load_raw(D d, const T* from) const {
    T buffer[hn::MaxLanes(D())] = {};
    std::memcpy(buffer, from, count * sizeof(T));
    return hn::LoadU(d, buffer);
  }
  template <class D, typename T>
  HWY_INLINE void store_raw(D d, hn::Vec<D> value, T* to) const {
    T buffer[hn::MaxLanes(D())];
    hn::StoreU(value, d, buffer);
    std::memcpy(to, buffer, count * sizeof(T));
  }
};

// body(access, i) for i = 0, lanes, 2 lanes, ... below count; `access` is WholeVector or PartialVector.
template <class D, class Body>
HWY_INLINE void for_each_vector(D d, int64_t count, Body&& body) {
  int64_t i = 0;
  for (; i + lanes(d) <= count; i += lanes(d)) body(WholeVector(), i);
  if (i < count) body(PartialVector{static_cast<size_t>(count - i)}, i);
}

template <class D>
HWY_INLINE hn::TFromD<D> sum_of_lanes(D d, hn::Vec<D> v) {
  return hn::GetLane(hn::SumOfLanes(d, v));
}

// 1 / x within 1 unit in the last place, for x and 1 / x normal. AVX-512 estimates 14 bits, to which one step
// of Newton's method adds the rest in a quarter of the time of a division; the 11 bits of AVX2 would not do.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V reciprocal(D d, V x) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const V estimate = hn::ApproximateReciprocal(x);
  return hn::MulAdd(estimate, hn::NegMulAdd(x, estimate, hn::Set(d, 1.0f)), estimate);
#else
  return hn::Div(hn::Set(d, 1.0f), x);
#endif
}

// exp(x) = y 2^q, y in [0.7, 1.42]; the lowest 9 bits of q_bits are those of q, the others are not.
template <class D>
struct ScaledExp {
  hn::Vec<D> y;
  hn::Vec<hn::Rebind<int32_t, D>> q_bits;
};

// For |x| < 2^21; NaN gives y = NaN. Same reduction and polynomial as Highway's Exp.
template <class D, class V = hn::Vec<D>>
HWY_INLINE ScaledExp<D> scaled_exp(D d, V x) {
  const hn::Rebind<int32_t, D> d32;
  // x = q ln 2 + r, |r| <= ln(2) / 2; ln 2 in two parts, the first with trailing zeros so that q times it is
  // exact. Added to 1.5 2^23 a number is rounded to an integer, which its lowest bits then hold.
  const V rounder = hn::Set(d, 0x1.8p23f);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), rounder);
  const V qf = hn::Sub(shifted, rounder);
  V r = hn::NegMulAdd(qf, hn::Set(d, 0.693145751953125f), x);
  r = hn::NegMulAdd(qf, hn::Set(d, 1.428606765330187045e-6f), r);
  // exp(r) = 1 + r + r^2 p(r)
  const V r2 = hn::Mul(r, r);
  const V p01 = hn::MulAdd(r, hn::Set(d, 0.166666671633720397949219f), hn::Set(d, 0.5f));
  const V p23 =
      hn::MulAdd(r, hn::Set(d, 0.00833336077630519866943359f), hn::Set(d, 0.0416664853692054748535156f));
  const V p45 =
      hn::MulAdd(r, hn::Set(d, 0.000198527617612853646278381f), hn::Set(d, 0.00139304355252534151077271f));
  const V p = hn::MulAdd(hn::MulAdd(p45, r2, p23), r2, p01);
  return {hn::Add(hn::MulAdd(p, r2, r), hn::Set(d, 1.0f)), hn::BitCast(d32, shifted)};
}

// exp(x) for x <= 0 (valid up to 43) within 2 units in the last place; 0 below -104, where exp is less than
// half the smallest subnormal. NaN gives NaN, where Highway's Exp gives 0.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_nonpositive(D d, V x) {
  const hn::Rebind<int32_t, D> d32;
  const auto [y, q_bits] = scaled_exp(d, x);
  // Times 2^(q + 64), made from exponent bits, then 2^-64: right for subnormal results too.
  const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(q_bits, hn::Set(d32, 127 + 64))));
  const V scaled = hn::Mul(hn::Mul(y, power), hn::Set(d, 0x1.0p-64f));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -104.0f)), scaled);
}

// The same for code that treats subnormal numbers as zero (subnormals.h): 0 where exp(x) is one. The exponent
// is added to that of y.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_nonpositive_normal(D d, V x) {
  const hn::Rebind<int32_t, D> d32;
  const auto [y, q_bits] = scaled_exp(d, x);
  const V scaled = hn::BitCast(d, hn::Add(hn::BitCast(d32, y), hn::ShiftLeft<23>(q_bits)));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(d, -87.3365f)), scaled);
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // guard per target
