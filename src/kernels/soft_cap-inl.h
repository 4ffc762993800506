// The soft cap of scores and logits: y = c tanh(x / c), with the derivative 1 - (y / c)^2. Gemma Team, "Gemma
// 2: Improving open language models at a practical size", 2024.
//
// Included once per instruction set (Highway's foreach_target), hence the unusual guard.
#if defined(TESSERA_SOFT_CAP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_SOFT_CAP_INL_H_
#undef TESSERA_SOFT_CAP_INL_H_
#else
#define TESSERA_SOFT_CAP_INL_H_
#endif

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// tanh(x) within 3 units in the last place. NaN stays NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V tanh_of(D d, V x) {
  const V magnitude = hn::Abs(x), square = hn::Mul(x, x);
  // (1 - e) / (1 + e) would cancel for small x: x + x^3 p(x^2) there (Moshier, Cephes, tanhf).
  V p = hn::MulAdd(hn::Set(d, -5.70498872745e-3f), square, hn::Set(d, 2.06390887954e-2f));
  p = hn::MulAdd(p, square, hn::Set(d, -5.37397155531e-2f));
  p = hn::MulAdd(p, square, hn::Set(d, 1.33314422036e-1f));
  p = hn::MulAdd(p, square, hn::Set(d, -3.33332819422e-1f));
  const V small = hn::MulAdd(hn::Mul(p, square), x, x);
  const V one = hn::Set(d, 1.0f);
  const V e = exp_nonpositive_normal(d, hn::Mul(hn::Set(d, -2.0f), magnitude));
  const V large = hn::Mul(hn::Sub(one, e), reciprocal(d, hn::Add(one, e)));
  return hn::IfThenElse(hn::Lt(magnitude, hn::Set(d, 0.625f)), small, hn::CopySign(large, x));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V soft_cap(D d, V x, float cap) {
  return hn::Mul(hn::Set(d, cap), tanh_of(d, hn::Mul(x, hn::Set(d, 1 / cap))));
}

// From y, the result.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V soft_cap_slope(D d, V y, float cap) {
  const V t = hn::Mul(y, hn::Set(d, 1 / cap));
  return hn::NegMulAdd(t, t, hn::Set(d, 1.0f));
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // guard per target
