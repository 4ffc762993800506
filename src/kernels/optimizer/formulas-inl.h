// The formulas of all rules: for F, a float or a vector of floats,
//
//   F update_element(scalars, set, weight, gradient, moments)
//
// updates the moments and returns the new weight; set(float) is an F.
//
// Included once per instruction set (Highway's foreach_target), hence the unusual guard.
#if defined(TESSERA_KERNELS_OPTIMIZER_FORMULAS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef TESSERA_KERNELS_OPTIMIZER_FORMULAS_INL_H_
#undef TESSERA_KERNELS_OPTIMIZER_FORMULAS_INL_H_
#else
#define TESSERA_KERNELS_OPTIMIZER_FORMULAS_INL_H_
#endif

#include <hwy/highway.h>

#include <cmath>

#include "kernels/optimizer/rules.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE float square_root(float x) { return std::sqrt(x); }
template <class V>
HWY_INLINE V square_root(V x) {
  return hn::Sqrt(x);
}

// -1, 0, 1 or NaN.
HWY_INLINE float sign_of(float x) { return x > 0 ? 1.0f : x < 0 ? -1.0f : x; }
template <class V>
HWY_INLINE V sign_of(V x) {
  const hn::DFromV<V> d;
  const auto moves = hn::Or(hn::Gt(x, hn::Zero(d)), hn::Lt(x, hn::Zero(d)));
  return hn::IfThenElse(moves, hn::CopySign(hn::Set(d, 1.0f), x), x);
}

#define TESSERA_UPDATE_FORMULAS
#include "kernels/optimizer/rules.h"
#undef TESSERA_UPDATE_FORMULAS

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // guard per target
