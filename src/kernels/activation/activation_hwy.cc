#include <algorithm>

#include "kernels/activation/activation_impl.h"
#include "kernels/activation_type.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/activation/activation_hwy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Elements of h a thread takes at a time; the row count follows from the width.
constexpr int64_t kBlockElements = 16 * 1024;

int64_t rows_of_task(int64_t F) { return std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, F)); }

// value = f(x), slope = f'(x).
struct Relu {
  template <size_t N>
  static HWY_INLINE void at(const VectorGroup<FloatTag, N>& x, VectorGroup<FloatTag, N>* value,
                            VectorGroup<FloatTag, N>* slope) {
    const FloatTag d;
    for (size_t k = 0; k < N; ++k) {
      const auto is_negative = hn::Le(x.v[k], hn::Zero(d));  // not for NaN, which stays
      value->v[k] = hn::IfThenZeroElse(is_negative, x.v[k]);
      slope->v[k] = hn::IfThenZeroElse(is_negative, hn::Set(d, 1.0f));
    }
  }
};

struct GeluTanh {
  template <size_t N>
  static HWY_INLINE void at(const VectorGroup<FloatTag, N>& x, VectorGroup<FloatTag, N>* value,
                            VectorGroup<FloatTag, N>* slope) {
    const FloatTag d;
    constexpr float kTwoRoot = 1.5957691216057308f, kCubic = 0.044715f;  // 2 sqrt(2 / pi)
    VectorGroup<FloatTag, N> twice_u, s, e, rise;
    for (size_t k = 0; k < N; ++k) {
      // Beyond 10 gelu is x or 0 in float32; the cube would overflow.
      const auto bounded = hn::IfThenElse(hn::Gt(hn::Abs(x.v[k]), hn::Set(d, 10.0f)),
                                          hn::CopySign(hn::Set(d, 10.0f), x.v[k]), x.v[k]);
      const auto square = hn::Mul(bounded, bounded);
      const auto root_x = hn::Mul(hn::Set(d, kTwoRoot), bounded);
      twice_u.v[k] = hn::Mul(root_x, hn::MulAdd(hn::Set(d, kCubic), square, hn::Set(d, 1.0f)));
      rise.v[k] = hn::Mul(root_x, hn::MulAdd(hn::Set(d, 3 * kCubic), square, hn::Set(d, 1.0f)));
    }
    sigmoid(twice_u, &s, &e);
    for (size_t k = 0; k < N; ++k) {
      value->v[k] = hn::Mul(x.v[k], s.v[k]);
      // s + s (1 - s) x 2 u', where 1 - s = e s
      slope->v[k] = hn::MulAdd(hn::Mul(s.v[k], hn::Mul(e.v[k], s.v[k])), rise.v[k], s.v[k]);
    }
  }
};

struct Gelu {
  template <size_t N>
  static HWY_INLINE void at(const VectorGroup<FloatTag, N>& x, VectorGroup<FloatTag, N>* value,
                            VectorGroup<FloatTag, N>* slope) {
    const FloatTag d;
    // erfc(z) = t exp(-z^2 + p(t)), t = 1 / (1 + z / 2), within 1.2e-7 of itself for z >= 0 (Press et al.,
    // Numerical Recipes in C, 6.2). Beyond 12 Phi is 1 or 0 in float32.
    constexpr float kTerms[] = {-0.82215223f, 1.48851587f, -1.13520398f, 0.27886807f, -0.18628806f,
                                0.09678418f,  0.37409196f, 1.00002368f,  -1.26551223f};
    VectorGroup<FloatTag, N> t, density, rest;
    for (size_t k = 0; k < N; ++k) {
      const auto bounded = hn::Min(hn::Abs(x.v[k]), hn::Set(d, 12.0f));
      const auto z = hn::Mul(bounded, hn::Set(d, 0.70710678f));
      t.v[k] = reciprocal(d, hn::MulAdd(hn::Set(d, 0.5f), z, hn::Set(d, 1.0f)));
      density.v[k] = hn::Neg(hn::Mul(z, z));
      rest.v[k] = hn::Set(d, 0.17087277f);
      for (const float term : kTerms) rest.v[k] = hn::MulAdd(rest.v[k], t.v[k], hn::Set(d, term));
    }
    exp_nonpositive_normal(d, density.v);  // exp(-x^2 / 2)
    exp_nonpositive_normal(d, rest.v);
    for (size_t k = 0; k < N; ++k) {
      const auto half_erfc = hn::Mul(hn::Set(d, 0.5f), hn::Mul(t.v[k], hn::Mul(density.v[k], rest.v[k])));
      const auto phi =
          hn::IfThenElse(hn::Lt(x.v[k], hn::Zero(d)), half_erfc, hn::Sub(hn::Set(d, 1.0f), half_erfc));
      value->v[k] = hn::Mul(x.v[k], phi);
      slope->v[k] = hn::MulAdd(hn::Mul(x.v[k], density.v[k]), hn::Set(d, 0.39894228f), phi);
    }
  }
};

template <typename F, bool kGated, typename A>
HWY_NOINLINE void activated_row(const A* pre, int64_t width, A* h) {
  const FloatTag d;
  for_each_group<kExpVectors>(d, width, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    constexpr size_t N = access.kVectors;
    VectorGroup<FloatTag, N> value, slope;
    F::at(access.load(d, pre + i), &value, &slope);
    if constexpr (kGated) {
      const auto up = access.load(d, pre + width + i);
      for (size_t k = 0; k < N; ++k) value.v[k] = hn::Mul(value.v[k], up.v[k]);
    }
    access.store(d, value, h + i);
  });
}

template <typename F, bool kGated, typename A>
HWY_NOINLINE void activated_row_backward(const A* dh, const A* pre, int64_t width, A* dpre, A* h) {
  const FloatTag d;
  for_each_group<kExpVectors>(d, width, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    constexpr size_t N = access.kVectors;
    VectorGroup<FloatTag, N> value, slope;
    F::at(access.load(d, pre + i), &value, &slope);
    auto gradient = access.load(d, dh + i);
    if constexpr (kGated) {
      const auto up = access.load(d, pre + width + i);
      VectorGroup<FloatTag, N> dup;
      for (size_t k = 0; k < N; ++k) {
        dup.v[k] = hn::Mul(gradient.v[k], value.v[k]);
        gradient.v[k] = hn::Mul(gradient.v[k], up.v[k]);
        value.v[k] = hn::Mul(value.v[k], up.v[k]);
      }
      access.store(d, dup, dpre + width + i);
    }
    for (size_t k = 0; k < N; ++k) gradient.v[k] = hn::Mul(gradient.v[k], slope.v[k]);
    access.store(d, gradient, dpre + i);
    access.store(d, value, h + i);
  });
}

// Calls body.template operator()<F, kGated>().
template <typename Body>
void with_function(Activation which, const Body& body) {
  if (which == Activation::kRelu) return body.template operator()<Relu, false>();
  if (which == Activation::kGelu) return body.template operator()<Gelu, false>();
  if (which == Activation::kGatedGelu) return body.template operator()<Gelu, true>();
  body.template operator()<GeluTanh, true>();
}

void forward_hwy(Activation which, ConstTensorView pre_TP, TensorView h_TF, ThreadPool& pool) {
  const int64_t T = h_TF.dim(0), width = h_TF.dim(1), P = pre_TP.dim(1);
  with_activation_type(h_TF.dtype(), [&]<typename A>(A) {
    const A* const pre = pre_TP.as<A>();
    A* const h = h_TF.as<A>();
    with_function(which, [&]<typename F, bool kGated>() {
      pool.parallel_blocks(T, rows_of_task(width), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t) activated_row<F, kGated>(pre + t * P, width, h + t * width);
      });
    });
  });
}

void backward_hwy(Activation which, ConstTensorView dh_TF, ConstTensorView pre_TP, TensorView dpre_TP,
                  TensorView h_TF, ThreadPool& pool) {
  const int64_t T = dh_TF.dim(0), width = dh_TF.dim(1), P = pre_TP.dim(1);
  with_activation_type(dh_TF.dtype(), [&]<typename A>(A) {
    const A *const dh = dh_TF.as<A>(), *const pre = pre_TP.as<A>();
    A *const dpre = dpre_TP.as<A>(), *const h = h_TF.as<A>();
    with_function(which, [&]<typename F, bool kGated>() {
      pool.parallel_blocks(T, rows_of_task(width), [&](int64_t begin, int64_t end) {
        for (int64_t t = begin; t < end; ++t)
          activated_row_backward<F, kGated>(dh + t * width, pre + t * P, width, dpre + t * P, h + t * width);
      });
    });
  });
}

const ActivationKernels kKernels = {.forward = forward_hwy, .backward = backward_hwy};

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

std::vector<Implementation<ActivationKernels>> activation_hwy() { return TESSERA_HWY_TABLE(kKernels); }

}  // namespace tessera
#endif
