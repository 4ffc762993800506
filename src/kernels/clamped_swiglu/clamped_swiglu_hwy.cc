#include <algorithm>

#include "kernels/activation_type.h"
#include "kernels/clamped_swiglu/clamped_swiglu_impl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/clamped_swiglu/clamped_swiglu_hwy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Elements of h a thread takes at a time.
constexpr int64_t kClampedBlockElements = 16 * 1024;

// lanes(d) pairs [gate, up].
HWY_INLINE void load_gate_up(FloatTag d, const float* from, hn::Vec<FloatTag>& gate, hn::Vec<FloatTag>& up) {
#if HWY_TARGET == HWY_SCALAR
  gate = load_floats(d, from);
  up = load_floats(d, from + 1);
#else
  hn::LoadInterleaved2(d, from, gate, up);
#endif
}
HWY_INLINE void store_gate_up(FloatTag d, hn::Vec<FloatTag> gate, hn::Vec<FloatTag> up, float* to) {
#if HWY_TARGET == HWY_SCALAR
  store_floats(d, gate, to);
  store_floats(d, up, to + 1);
#else
  hn::StoreInterleaved2(gate, up, d, to);
#endif
}
// A group of two vectors of bf16 has the elements at even places in the first.
HWY_INLINE void load_gate_up(FloatTag d, const bf16* from, hn::Vec<FloatTag>& gate, hn::Vec<FloatTag>& up) {
  const VectorGroup<FloatTag, 2> group = load_group<2>(d, from);
  gate = group.v[0];
  up = group.v[1];
}
HWY_INLINE void store_gate_up(FloatTag d, hn::Vec<FloatTag> gate, hn::Vec<FloatTag> up, bf16* to) {
  VectorGroup<FloatTag, 2> group = {{gate, up}};
  store_group(d, group, to);
}

// N vectors of clamped pairs, the masks of what was clamped, and the sigmoid. Comparisons are false for NaN,
// which stays.
template <size_t N>
struct ClampedPairs {
  Group<N> gate, up_plus_one, s, e;
  hn::Mask<FloatTag> gate_is_cut[N], up_is_cut[N];

  template <typename A>
  HWY_INLINE ClampedPairs(const A* pre, const ClampedSwiglu& clamp) {
    const FloatTag d;
    const auto limit = hn::Set(d, clamp.limit);
    Group<N> x;
    for (size_t k = 0; k < N; ++k) {
      hn::Vec<FloatTag> raw_gate, up;
      load_gate_up(d, pre + 2 * k * hn::Lanes(d), raw_gate, up);
      gate_is_cut[k] = hn::Gt(raw_gate, limit);
      up_is_cut[k] = hn::Gt(hn::Abs(up), limit);
      gate.v[k] = hn::IfThenElse(gate_is_cut[k], limit, raw_gate);
      up = hn::IfThenElse(up_is_cut[k], hn::CopySign(limit, up), up);
      up_plus_one.v[k] = hn::Add(up, hn::Set(d, 1.0f));
      x.v[k] = hn::Mul(hn::Set(d, clamp.alpha), gate.v[k]);
    }
    sigmoid(x, &s, &e);
  }

  HWY_INLINE hn::Vec<FloatTag> h(size_t k) const {
    return hn::Mul(hn::Mul(gate.v[k], s.v[k]), up_plus_one.v[k]);
  }
};

template <size_t N, typename A>
HWY_INLINE void clamped_vectors(const A* pre, const ClampedSwiglu& clamp, A* h) {
  const FloatTag d;
  const ClampedPairs<N> pairs(pre, clamp);
  for (size_t k = 0; k < N; ++k) store_floats(d, pairs.h(k), h + k * hn::Lanes(d));
}

template <size_t N, typename A>
HWY_INLINE void clamped_vectors_backward(const A* dh, const A* pre, const ClampedSwiglu& clamp, A* dpre,
                                         A* h) {
  const FloatTag d;
  const ClampedPairs<N> pairs(pre, clamp);
  for (size_t k = 0; k < N; ++k) {
    const size_t at = k * hn::Lanes(d);
    const auto gradient = load_floats(d, dh + at), s = pairs.s.v[k];
    const auto glu = hn::Mul(pairs.gate.v[k], s);
    // 1 - s = e s
    const auto rise = hn::Mul(hn::Set(d, clamp.alpha), hn::Mul(pairs.e.v[k], s));
    const auto dgate = hn::Mul(hn::Mul(gradient, pairs.up_plus_one.v[k]), hn::MulAdd(glu, rise, s));
    const auto dup = hn::Mul(gradient, glu);
    store_floats(d, pairs.h(k), h + at);
    store_gate_up(d, hn::IfThenZeroElse(pairs.gate_is_cut[k], dgate),
                  hn::IfThenZeroElse(pairs.up_is_cut[k], dup), dpre + 2 * at);
  }
}

// The elements after the last whole vector go through the stack.
template <typename A>
HWY_NOINLINE void clamped_range(const A* pre, int64_t count, const ClampedSwiglu& clamp, A* h) {
  const int64_t N = lanes(FloatTag());
  constexpr auto kStep = static_cast<int64_t>(kExpVectors);
  int64_t i = 0;
  for (; i + kStep * N <= count; i += kStep * N) clamped_vectors<kExpVectors>(pre + 2 * i, clamp, h + i);
  for (; i + N <= count; i += N) clamped_vectors<1>(pre + 2 * i, clamp, h + i);
  if (i == count) return;
  A of_pre[2 * hn::MaxLanes(FloatTag())] = {}, of_h[hn::MaxLanes(FloatTag())];
  std::copy_n(pre + 2 * i, 2 * (count - i), of_pre);
  clamped_vectors<1>(of_pre, clamp, of_h);
  std::copy_n(of_h, count - i, h + i);
}

template <typename A>
HWY_NOINLINE void clamped_range_backward(const A* dh, const A* pre, int64_t count, const ClampedSwiglu& clamp,
                                         A* dpre, A* h) {
  const int64_t N = lanes(FloatTag());
  constexpr auto kStep = static_cast<int64_t>(kExpVectors);
  int64_t i = 0;
  for (; i + kStep * N <= count; i += kStep * N)
    clamped_vectors_backward<kExpVectors>(dh + i, pre + 2 * i, clamp, dpre + 2 * i, h + i);
  for (; i + N <= count; i += N) clamped_vectors_backward<1>(dh + i, pre + 2 * i, clamp, dpre + 2 * i, h + i);
  if (i == count) return;
  A of_pre[2 * hn::MaxLanes(FloatTag())] = {}, of_h[hn::MaxLanes(FloatTag())] = {};
  std::copy_n(pre + 2 * i, 2 * (count - i), of_pre);
  std::copy_n(dh + i, count - i, of_h);
  clamped_vectors_backward<1>(of_h, of_pre, clamp, of_pre, of_h);
  std::copy_n(of_pre, 2 * (count - i), dpre + 2 * i);
  std::copy_n(of_h, count - i, h + i);
}

void clamped_forward_hwy(ConstTensorView pre_TF2, const ClampedSwiglu& clamp, TensorView h_TF,
                         ThreadPool& pool) {
  with_activation_type(h_TF.dtype(), [&]<typename A>(A) {
    const A* const pre = pre_TF2.as<A>();
    A* const h = h_TF.as<A>();
    pool.parallel_blocks(h_TF.num_elements(), kClampedBlockElements, [&](int64_t begin, int64_t end) {
      clamped_range(pre + 2 * begin, end - begin, clamp, h + begin);
    });
  });
}

void clamped_backward_hwy(ConstTensorView dh_TF, ConstTensorView pre_TF2, const ClampedSwiglu& clamp,
                          TensorView dpre_TF2, TensorView h_TF, ThreadPool& pool) {
  with_activation_type(dh_TF.dtype(), [&]<typename A>(A) {
    const A *const dh = dh_TF.as<A>(), *const pre = pre_TF2.as<A>();
    A *const dpre = dpre_TF2.as<A>(), *const h = h_TF.as<A>();
    pool.parallel_blocks(dh_TF.num_elements(), kClampedBlockElements, [&](int64_t begin, int64_t end) {
      clamped_range_backward(dh + begin, pre + 2 * begin, end - begin, clamp, dpre + 2 * begin, h + begin);
    });
  });
}

const ClampedSwigluKernels kKernels = {.forward = clamped_forward_hwy, .backward = clamped_backward_hwy};

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

std::vector<Implementation<ClampedSwigluKernels>> clamped_swiglu_hwy() { return TESSERA_HWY_TABLE(kKernels); }

}  // namespace tessera
#endif
