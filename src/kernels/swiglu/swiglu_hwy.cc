#include <algorithm>

#include "kernels/activation_type.h"
#include "kernels/swiglu/swiglu_impl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/swiglu/swiglu_hwy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Elements of h a thread takes at a time; the row count follows from the width.
constexpr int64_t kBlockElements = 16 * 1024;

int64_t block_rows(int64_t F) { return std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, F)); }

// s = 1 / (1 + exp(-x)) and 1 - s, both to full relative precision: from e = exp(-|x|), the larger of the two
// is 1 / (1 + e) and the smaller e / (1 + e).
template <class D, class V>
HWY_INLINE void sigmoid(D d, V x, V* s, V* one_minus_s) {
  const V e = exp_nonpositive_normal(d, hn::Or(x, hn::SignBit(d)));
  const V larger = reciprocal(d, hn::Add(hn::Set(d, 1.0f), e));
  const V smaller = hn::Mul(e, larger);
  const auto negative = hn::Lt(x, hn::Zero(d));
  *s = hn::IfThenElse(negative, smaller, larger);
  *one_minus_s = hn::IfThenElse(negative, larger, smaller);
}

template <typename A>
HWY_NOINLINE void forward_row(const A* gate_up, int64_t F, A* h) {
  const FloatTag d;
  for_each_vector(d, F, [&](auto access, int64_t i) HWY_ATTR {
    const auto x = access.load(d, gate_up + i);
    hn::Vec<FloatTag> s, one_minus_s;
    sigmoid(d, x, &s, &one_minus_s);
    access.store(d, hn::Mul(hn::Mul(x, s), access.load(d, gate_up + F + i)), h + i);
  });
}

template <typename A>
HWY_NOINLINE void backward_row(const A* dh, const A* gate_up, int64_t F, A* dgate_up, A* h) {
  const FloatTag d;
  for_each_vector(d, F, [&](auto access, int64_t i) HWY_ATTR {
    const auto x = access.load(d, gate_up + i);
    const auto up = access.load(d, gate_up + F + i);
    const auto gradient = access.load(d, dh + i);
    hn::Vec<FloatTag> s, one_minus_s;
    sigmoid(d, x, &s, &one_minus_s);
    const auto slope = hn::Mul(s, hn::MulAdd(x, one_minus_s, hn::Set(d, 1.0f)));
    access.store(d, hn::Mul(hn::Mul(gradient, up), slope), dgate_up + i);
    const auto silu = hn::Mul(x, s);
    access.store(d, hn::Mul(gradient, silu), dgate_up + F + i);
    access.store(d, hn::Mul(silu, up), h + i);
  });
}

void forward_hwy(ConstTensorView gate_up_TF2, TensorView h_TF, ThreadPool& pool) {
  const int64_t T = h_TF.dim(0), F = h_TF.dim(1);
  with_activation_type(h_TF.dtype(), [&]<typename A>(A) {
    const A* const gate_up = gate_up_TF2.as<A>();
    A* const h = h_TF.as<A>();
    pool.parallel_blocks(T, block_rows(F), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) forward_row(gate_up + t * 2 * F, F, h + t * F);
    });
  });
}

void backward_hwy(ConstTensorView dh_TF, ConstTensorView gate_up_TF2, TensorView dgate_up_TF2,
                  TensorView h_TF, ThreadPool& pool) {
  const int64_t T = dh_TF.dim(0), F = dh_TF.dim(1);
  with_activation_type(dh_TF.dtype(), [&]<typename A>(A) {
    const A* const dh = dh_TF.as<A>();
    const A* const gate_up = gate_up_TF2.as<A>();
    A *const dgate_up = dgate_up_TF2.as<A>(), *const h = h_TF.as<A>();
    pool.parallel_blocks(T, block_rows(F), [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        backward_row(dh + t * F, gate_up + t * 2 * F, F, dgate_up + t * 2 * F, h + t * F);
      }
    });
  });
}

const SwigluKernels kKernels = {.forward = forward_hwy, .backward = backward_hwy};

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

std::vector<Implementation<SwigluKernels>> swiglu_hwy() { return TESSERA_HWY_TABLE(kKernels); }

}  // namespace tessera
#endif
