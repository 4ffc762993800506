// Shared by the vector kernels: float32 vectors loaded from and stored to BF16 or F32 memory, loops with
// remainders that never read or write out of range, and the exponential.
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
#include <type_traits>

#include "base/float_types.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Float32 vectors of the instruction set's full width.
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

// Rounds to nearest, ties to even; NaN stays NaN: like to_bf16, except that a subnormal number may become
// zero.
template <class D>
HWY_INLINE void store_floats(D d, hn::Vec<D> value, float* to) {
  hn::StoreU(value, d, to);
}
#if HWY_TARGET == HWY_AVX3_DL
// Highway 1.0.3 does not know AVX512_BF16, which dispatch.h additionally requires for this target. Two cycles
// instead of five; subnormal numbers become zero regardless of the processor's mode.
HWY_INLINE __m256i round_to_bf16(__m512 values) {
  __m256i rounded;
  asm("vcvtneps2bf16 %1, %0" : "=v"(rounded) : "v"(values));
  return rounded;
}
// The elements of `low` go to the lower half of the result.
HWY_INLINE __m512i round_to_bf16(__m512 low, __m512 high) {
  __m512i rounded;
  asm("vcvtne2ps2bf16 %1, %2, %0" : "=v"(rounded) : "v"(low), "v"(high));
  return rounded;
}
#endif

// The rounded bf16 values are in the upper halves; the lower halves are unspecified.
template <class D>
HWY_INLINE hn::Vec<hn::Rebind<uint32_t, D>> round_upper_half(D /*d*/, hn::Vec<D> value) {
  const hn::Rebind<uint32_t, D> d32;
  const auto bits = hn::BitCast(d32, value);
  const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(d32, 1u));
  const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(d32, 0x7FFFu)));
  const auto quiet_nan = hn::Or(bits, hn::Set(d32, 0x400000u));
  return hn::IfThenElse(hn::RebindMask(d32, hn::IsNaN(value)), quiet_nan, rounded);
}

template <class D>
HWY_INLINE void store_floats(D d, hn::Vec<D> value, bf16* to) {
#if HWY_TARGET == HWY_AVX3_DL
  if constexpr (sizeof(hn::Vec<D>) == 64) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), round_to_bf16(value.raw));
    return;
  }
#endif
  const hn::Rebind<uint16_t, D> d16;
  hn::StoreU(hn::TruncateTo(d16, hn::ShiftRight<16>(round_upper_half(d, value))), d16, &to->bits);
}

#if HWY_TARGET != HWY_SCALAR
// Rounded as above, with elements k of `even` and `odd` adjacent.
template <class D>
HWY_INLINE hn::Vec<hn::Repartition<uint16_t, D>> pack_bf16(D d, hn::Vec<D> even, hn::Vec<D> odd) {
  const hn::Repartition<uint16_t, D> d16;
#if HWY_TARGET == HWY_AVX3_DL
  if constexpr (sizeof(hn::Vec<D>) == 64) {
    alignas(64) static constexpr uint16_t kInterleave[32] = {0,  16, 1,  17, 2,  18, 3,  19, 4,  20, 5,
                                                             21, 6,  22, 7,  23, 8,  24, 9,  25, 10, 26,
                                                             11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i halves = round_to_bf16(even.raw, odd.raw);
    return {_mm512_permutexvar_epi16(_mm512_load_si512(kInterleave), halves)};
  }
#endif
  const auto low = hn::BitCast(d16, hn::ShiftRight<16>(round_upper_half(d, even)));
  return hn::OddEven(hn::BitCast(d16, round_upper_half(d, odd)), low);
}
#endif

// Access object of for_each_vector for a whole vector...
struct WholeVector {
  template <class D, typename T>
  HWY_INLINE hn::Vec<D> load(D d, const T* from) const {
    return load_floats(d, from);
  }
  template <class D, typename T>
  HWY_INLINE void store(D d, hn::Vec<D> value, T* to) const {
    store_floats(d, value, to);
  }
  // Integers, unconverted.
  template <class D, typename T>
  HWY_INLINE hn::Vec<D> load_raw(D d, const T* from) const {
    return hn::LoadU(d, from);
  }
  template <class D, typename T>
  HWY_INLINE void store_raw(D d, hn::Vec<D> value, T* to) const {
    hn::StoreU(value, d, to);
  }
};

// ... and for the first `count` lanes at the end of a range; the others load as 0. Goes through the stack:
// masked loads of 16-bit elements may touch memory out of range on AVX2.
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

// Calls body(access, i) for i = 0, lanes, 2 lanes, ... below count; `access` is WholeVector or PartialVector.
template <class D, class Body>
HWY_INLINE void for_each_vector(D d, int64_t count, Body&& body) {
  int64_t i = 0;
  for (; i + lanes(d) <= count; i += lanes(d)) body(WholeVector(), i);
  if (i < count) body(PartialVector{static_cast<size_t>(count - i)}, i);
}

// N vectors, N even: N lanes(d) consecutive elements of an array of A, in the order in which they unpack
// cheapest. BF16: of every 2 lanes(d) elements first the even-indexed, then the odd-indexed ones, so that no
// element moves between lanes; F32: in memory order.
template <class D, size_t N>
struct VectorGroup {
  hn::Vec<D> v[N];
};

template <size_t N, class D>
HWY_INLINE VectorGroup<D, N> load_group(D d, const float* from) {
  VectorGroup<D, N> group;
  for (size_t k = 0; k < N; ++k) group.v[k] = hn::LoadU(d, from + k * hn::Lanes(d));
  return group;
}
template <size_t N, class D>
HWY_INLINE VectorGroup<D, N> load_group(D d, const bf16* from) {
  VectorGroup<D, N> group;
#if HWY_TARGET == HWY_SCALAR
  for (size_t k = 0; k < N; ++k) group.v[k] = load_floats(d, from + k);
#else
  const hn::Repartition<uint16_t, D> d16;
  const hn::Repartition<uint32_t, D> d32;
  for (size_t k = 0; k < N; k += 2) {
    const auto bits = hn::BitCast(d32, hn::LoadU(d16, &from[k * hn::Lanes(d)].bits));
    group.v[k] = hn::BitCast(d, hn::ShiftLeft<16>(bits));
    group.v[k + 1] = hn::BitCast(d, hn::And(bits, hn::Set(d32, 0xFFFF0000u)));
  }
#endif
  return group;
}

// `group` is set to what was stored, that is, rounded.
template <size_t N, class D>
HWY_INLINE void store_group(D d, VectorGroup<D, N>& group, float* to) {
  for (size_t k = 0; k < N; ++k) hn::StoreU(group.v[k], d, to + k * hn::Lanes(d));
}
template <size_t N, class D>
HWY_INLINE void store_group(D d, VectorGroup<D, N>& group, bf16* to) {
#if HWY_TARGET == HWY_SCALAR
  for (size_t k = 0; k < N; ++k) store_floats(d, group.v[k], to + k);
  group = load_group<N>(d, to);
#else
  const hn::Repartition<uint32_t, D> d32;
  const hn::Repartition<uint16_t, D> d16;
  for (size_t k = 0; k < N; k += 2) {
    const auto packed = pack_bf16(d, group.v[k], group.v[k + 1]);
    hn::StoreU(packed, d16, &to[k * hn::Lanes(d)].bits);
    const auto bits = hn::BitCast(d32, packed);
    group.v[k] = hn::BitCast(d, hn::ShiftLeft<16>(bits));
    group.v[k + 1] = hn::BitCast(d, hn::And(bits, hn::Set(d32, 0xFFFF0000u)));
  }
#endif
}

// Float32 loaded in the order of a group of A.
template <typename A, size_t N, class D>
HWY_INLINE VectorGroup<D, N> load_floats_as(D d, const float* from) {
  VectorGroup<D, N> group = load_group<N>(d, from);
#if HWY_TARGET != HWY_SCALAR
  if constexpr (std::is_same_v<A, bf16>) {
    for (size_t k = 0; k < N; k += 2) {
      const auto low = group.v[k], high = group.v[k + 1];
      group.v[k] = hn::ConcatEven(d, high, low);
      group.v[k + 1] = hn::ConcatOdd(d, high, low);
    }
  }
#endif
  return group;
}

template <typename A, size_t N, class D>
HWY_INLINE void store_floats_as(D d, const VectorGroup<D, N>& group, float* to) {
  for (size_t k = 0; k < N; k += 2) {
    float* const at = to + k * hn::Lanes(d);
#if HWY_TARGET != HWY_SCALAR
    if constexpr (std::is_same_v<A, bf16>) {
      hn::StoreInterleaved2(group.v[k], group.v[k + 1], d, at);
      continue;
    }
#endif
    hn::StoreU(group.v[k], d, at);
    hn::StoreU(group.v[k + 1], d, at + hn::Lanes(d));
  }
}

// Access object of for_each_group for a whole group ...
template <size_t N>
struct WholeGroup {
  static constexpr size_t kVectors = N;

  template <class D, typename T>
  HWY_INLINE VectorGroup<D, N> load(D d, const T* from) const {
    return load_group<N>(d, from);
  }
  template <typename A, class D>
  HWY_INLINE VectorGroup<D, N> load_as(D d, const float* from) const {
    return load_floats_as<A, N>(d, from);
  }
  template <class D, typename T>
  HWY_INLINE void store(D d, VectorGroup<D, N>& group, T* to) const {
    store_group(d, group, to);
  }
  template <typename A, class D>
  HWY_INLINE void store_as(D d, const VectorGroup<D, N>& group, float* to) const {
    store_floats_as<A>(d, group, to);
  }
};

// ... and for the first `count` elements of two vectors at the end of a range; the others load as 0.
struct PartialGroup {
  static constexpr size_t kVectors = 2;

  size_t count;

  template <class D, typename T>
  HWY_INLINE VectorGroup<D, 2> load(D d, const T* from) const {
    T buffer[2 * hn::MaxLanes(D())] = {};
    std::memcpy(buffer, from, count * sizeof(T));
    return load_group<2>(d, buffer);
  }
  template <typename A, class D>
  HWY_INLINE VectorGroup<D, 2> load_as(D d, const float* from) const {
    float buffer[2 * hn::MaxLanes(D())] = {};
    std::memcpy(buffer, from, count * sizeof(float));
    return load_floats_as<A, 2>(d, buffer);
  }
  template <class D, typename T>
  HWY_INLINE void store(D d, VectorGroup<D, 2>& group, T* to) const {
    T buffer[2 * hn::MaxLanes(D())];
    store_group(d, group, buffer);
    std::memcpy(to, buffer, count * sizeof(T));
  }
  template <typename A, class D>
  HWY_INLINE void store_as(D d, const VectorGroup<D, 2>& group, float* to) const {
    float buffer[2 * hn::MaxLanes(D())];
    store_floats_as<A>(d, group, buffer);
    std::memcpy(to, buffer, count * sizeof(float));
  }
};

// Follows the parameters of a lambda that is a loop body: by default the compiler does not inline longer ones
// but calls them, with all their constants, in every iteration.
#undef TESSERA_LOOP_BODY
#define TESSERA_LOOP_BODY HWY_ATTR __attribute__((always_inline))

// Calls body(access, i) for every group of [0, count): groups of N vectors, then of two, then a partial one;
// access has kVectors.
template <size_t N, class D, class Body>
HWY_INLINE void for_each_group(D d, int64_t count, Body&& body) {
  constexpr auto kSize = static_cast<int64_t>(N);
  int64_t i = 0;
  for (; i + kSize * lanes(d) <= count; i += kSize * lanes(d)) body(WholeGroup<N>(), i);
  if constexpr (N > 2) {
    for (; i + 2 * lanes(d) <= count; i += 2 * lanes(d)) body(WholeGroup<2>(), i);
  }
  if (i < count) body(PartialGroup{static_cast<size_t>(count - i)}, i);
}

// Prefetch distance in bytes into L1, chosen to cover about the latency of memory. Reading 512 MiB per core,
// two cores, GB/s: 32 without, 39 at 1 KiB, 37 at 2 KiB, 34 at 8 KiB.
constexpr uintptr_t kPrefetchBytes = 1024;

// Prefetches the cache lines of a group of N vectors of A `distance` bytes after `at`, for writing if the
// elements are not const; harmless beyond the end of an array.
template <size_t N, typename A, class D, typename T>
HWY_INLINE void prefetch_ahead(D d, T* at, uintptr_t distance = kPrefetchBytes) {
  constexpr uintptr_t kLine = 64;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(at) + distance;
  for (uintptr_t line = 0; line < N * hn::Lanes(d) * sizeof(A); line += kLine) {
    __builtin_prefetch(reinterpret_cast<const void*>(begin + line), std::is_const_v<T> ? 0 : 1);
  }
}

template <class D>
HWY_INLINE hn::TFromD<D> sum_of_lanes(D d, hn::Vec<D> v) {
  return hn::GetLane(hn::SumOfLanes(d, v));
}

// 1 / x within 1 unit in the last place, for x and 1 / x normal. AVX-512 estimates 14 bits, and one step of
// Newton's method adds the rest in a quarter of the time of a division; the 11 bits of AVX2 would not
// suffice.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V reciprocal(D d, V x) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  const V estimate = hn::ApproximateReciprocal(x);
  return hn::MulAdd(estimate, hn::NegMulAdd(x, estimate, hn::Set(d, 1.0f)), estimate);
#else
  return hn::Div(hn::Set(d, 1.0f), x);
#endif
}

// Vectors whose exponentials are computed side by side: each is a chain of 13 dependent operations, and the
// processor does not look far enough ahead to overlap the chains of consecutive loop iterations.
constexpr size_t kExpVectors = HWY_TARGET <= HWY_AVX3 ? 4 : 2;

// y = r y + c
template <size_t N, class D, class V = hn::Vec<D>>
HWY_INLINE void times_plus(D d, const V (&r)[N], float c, V (&y)[N]) {
  for (size_t k = 0; k < N; ++k) y[k] = hn::MulAdd(r[k], y[k], hn::Set(d, c));
}

// exp(x) = y 2^q with y in [0.7, 1.42] within 1 unit in the last place, and shifted = q + 1.5 2^23. For |x| <
// 2^21; NaN gives y = NaN.
template <size_t N, class D, class V = hn::Vec<D>>
HWY_INLINE void scaled_exp(D d, const V (&x)[N], V (&y)[N], V (&shifted)[N]) {
  // x = q ln 2 + r, |r| <= ln(2) / 2; ln 2 in two parts, the first with trailing zeros so that its product
  // with q is exact. Adding 1.5 2^23 rounds a number to an integer, which its lowest bits then hold.
  const V rounder = hn::Set(d, 0x1.8p23f);
  V r[N];
  for (size_t k = 0; k < N; ++k) shifted[k] = hn::MulAdd(x[k], hn::Set(d, 1.44269504088896341f), rounder);
  for (size_t k = 0; k < N; ++k) {
    r[k] = hn::NegMulAdd(hn::Sub(shifted[k], rounder), hn::Set(d, 0.693145751953125f), x[k]);
  }
  for (size_t k = 0; k < N; ++k) {
    r[k] = hn::NegMulAdd(hn::Sub(shifted[k], rounder), hn::Set(d, 1.428606765330187045e-6f), r[k]);
  }
  // exp(r) = 1 + r + r^2 p(r), p the minimax polynomial of degree 4: maximum error 3e-9 of exp(r).
  for (size_t k = 0; k < N; ++k) {
    y[k] = hn::MulAdd(r[k], hn::Set(d, 0x1.6a4d14p-10f), hn::Set(d, 0x1.12398ap-7f));
  }
  times_plus(d, r, 0x1.5558bp-5f, y);
  times_plus(d, r, 0x1.555492p-3f, y);
  times_plus(d, r, 0x1.fffffcp-2f, y);
  times_plus(d, r, 1.0f, y);
  times_plus(d, r, 1.0f, y);
}

// x = exp(x) for x <= 0 (valid up to 43) within 2 units in the last place; 0 below -104, where exp is less
// than half the smallest subnormal. NaN gives NaN; Highway's Exp gives 0.
template <size_t N, class D, class V = hn::Vec<D>>
HWY_INLINE void exp_nonpositive(D d, V (&x)[N]) {
  V y[N], shifted[N];
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  for (size_t k = 0; k < N; ++k) x[k] = hn::Max(hn::Set(d, -104.0f), x[k]);  // NaN: the second operand
  scaled_exp(d, x, y, shifted);
  for (size_t k = 0; k < N; ++k) {
    x[k] = V{_mm512_scalef_ps(y[k].raw, hn::Sub(shifted[k], hn::Set(d, 0x1.8p23f)).raw)};
  }
#else
  const hn::Rebind<int32_t, D> d32;
  scaled_exp(d, x, y, shifted);
  for (size_t k = 0; k < N; ++k) {
    // Multiply by 2^(q + 64), built from exponent bits, then by 2^-64: also correct for subnormal results.
    const auto q_bits = hn::BitCast(d32, shifted[k]);
    const V power = hn::BitCast(d, hn::ShiftLeft<23>(hn::Add(q_bits, hn::Set(d32, 127 + 64))));
    const V scaled = hn::Mul(hn::Mul(y[k], power), hn::Set(d, 0x1.0p-64f));
    x[k] = hn::IfThenZeroElse(hn::Lt(x[k], hn::Set(d, -104.0f)), scaled);
  }
#endif
}

// For code that treats subnormal numbers as zero (subnormals.h): gives 0 where exp(x) is subnormal. Valid up
// to 88.
template <size_t N, class D, class V = hn::Vec<D>>
HWY_INLINE void exp_nonpositive_normal(D d, V (&x)[N]) {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  exp_nonpositive(d, x);
#else
  const hn::Rebind<int32_t, D> d32;
  V y[N], shifted[N];
  scaled_exp(d, x, y, shifted);
  for (size_t k = 0; k < N; ++k) {
    // Adds q to the exponent of y.
    const auto exponent = hn::ShiftLeft<23>(hn::BitCast(d32, shifted[k]));
    const V scaled = hn::BitCast(d, hn::Add(hn::BitCast(d32, y[k]), exponent));
    x[k] = hn::IfThenZeroElse(hn::Lt(x[k], hn::Set(d, -87.3365f)), scaled);
  }
#endif
}

// A single vector.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_nonpositive(D d, V x) {
  V vectors[] = {x};
  exp_nonpositive(d, vectors);
  return vectors[0];
}
template <class D, class V = hn::Vec<D>>
HWY_INLINE V exp_nonpositive_normal(D d, V x) {
  V vectors[] = {x};
  exp_nonpositive_normal(d, vectors);
  return vectors[0];
}

template <size_t N>
using Group = VectorGroup<FloatTag, N>;

// s = 1 / (1 + exp(-x)) and e = exp(-x), so that 1 - s = e s: both to full relative precision. Below -87.3 s
// is subnormal, hence zero; below -88 e keeps its value at -88, so that no product with it is infinite.
template <size_t N>
HWY_INLINE void sigmoid(const Group<N>& x, Group<N>* s, Group<N>* e) {
  const FloatTag d;
  for (size_t k = 0; k < N; ++k) e->v[k] = hn::Min(hn::Set(d, 88.0f), hn::Neg(x.v[k]));  // NaN: the second
  exp_nonpositive_normal(d, e->v);
  for (size_t k = 0; k < N; ++k) s->v[k] = reciprocal(d, hn::Add(hn::Set(d, 1.0f), e->v[k]));
}

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#endif  // guard per target
