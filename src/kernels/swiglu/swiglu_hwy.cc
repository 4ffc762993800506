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

template <typename A>
HWY_NOINLINE void forward_row(const A* gate_up, int64_t F, A* h) {
  const FloatTag d;
  for_each_group<kExpVectors>(d, F, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    constexpr size_t N = access.kVectors;
    prefetch_ahead<N, A>(d, gate_up + i);
    prefetch_ahead<N, A>(d, gate_up + F + i);
    prefetch_ahead<N, A>(d, h + i);
    const Group<N> gate = access.load(d, gate_up + i);
    Group<N> s, e;
    sigmoid(gate, &s, &e);
    const Group<N> up = access.load(d, gate_up + F + i);
    Group<N> result;
    for (size_t k = 0; k < N; ++k) result.v[k] = hn::Mul(hn::Mul(gate.v[k], s.v[k]), up.v[k]);
    access.store(d, result, h + i);
  });
}

template <typename A>
HWY_NOINLINE void backward_row(const A* dh, const A* gate_up, int64_t F, A* dgate_up, A* h) {
  const FloatTag d;
  for_each_group<kExpVectors>(d, F, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    constexpr size_t N = access.kVectors;
    for (const A* from : {dh, gate_up, gate_up + F}) prefetch_ahead<N, A>(d, from + i);
    for (A* to : {dgate_up, dgate_up + F, h}) prefetch_ahead<N, A>(d, to + i);
    const Group<N> gate = access.load(d, gate_up + i);
    Group<N> s, e;
    sigmoid(gate, &s, &e);
    const Group<N> up = access.load(d, gate_up + F + i), gradient = access.load(d, dh + i);
    Group<N> dgate, dup, product;
    for (size_t k = 0; k < N; ++k) {
      const auto silu = hn::Mul(gate.v[k], s.v[k]);
      const auto slope = hn::MulAdd(silu, hn::Mul(e.v[k], s.v[k]), s.v[k]);
      dgate.v[k] = hn::Mul(hn::Mul(gradient.v[k], up.v[k]), slope);
      dup.v[k] = hn::Mul(gradient.v[k], silu);
      product.v[k] = hn::Mul(silu, up.v[k]);
    }
    access.store(d, dgate, dgate_up + i);
    access.store(d, dup, dgate_up + F + i);
    access.store(d, product, h + i);
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
