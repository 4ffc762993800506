#include <algorithm>

#include "kernels/activation_type.h"
#include "kernels/rope/rope_impl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rope/rope_hwy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Elements of qkv a thread takes at a time; the row count follows from the width.
constexpr int64_t kBlockElements = 16 * 1024;

// Consecutive heads of a row, and what they are multiplied by beside their rotation.
template <typename A>
struct Heads {
  A* first;
  int64_t count, head_dim;
  float factor;
};

// Rotates element i of every head before element i + 1 of any: cos and sin, which all heads share, stay in
// registers.
template <typename A>
HWY_NOINLINE void rotate_heads(const Heads<A>& heads, int64_t half, const float* cos, const float* sin,
                               bool inverse) {
  const FloatTag d;
  const auto factor = hn::Set(d, heads.factor);
  const auto sign = hn::Set(d, inverse ? -heads.factor : heads.factor);
  for_each_group<4>(d, half, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    constexpr size_t N = access.kVectors;
    auto c = access.template load_as<A>(d, cos + i);
    auto s = access.template load_as<A>(d, sin + i);
    for (size_t k = 0; k < N; ++k) {
      c.v[k] = hn::Mul(factor, c.v[k]);
      s.v[k] = hn::Mul(sign, s.v[k]);
    }
    for (int64_t head = 0; head < heads.count; ++head) {
      A* const first = heads.first + head * heads.head_dim + i;
      A* const second = first + half;
      prefetch_ahead<N, A>(d, first);
      prefetch_ahead<N, A>(d, second);
      const auto a = access.load(d, first), b = access.load(d, second);
      auto rotated_a = a, rotated_b = b;
      for (size_t k = 0; k < N; ++k) {
        rotated_a.v[k] = hn::NegMulAdd(b.v[k], s.v[k], hn::Mul(a.v[k], c.v[k]));
        rotated_b.v[k] = hn::MulAdd(a.v[k], s.v[k], hn::Mul(b.v[k], c.v[k]));
      }
      access.store(d, rotated_a, first);
      access.store(d, rotated_b, second);
    }
  });
}

// Two vectors of neighbours: a has the first of each pair.
template <class D>
HWY_INLINE void load_pairs(D d, const float* from, hn::Vec<D>& a, hn::Vec<D>& b) {
#if HWY_TARGET == HWY_SCALAR
  a = hn::Set(d, from[0]);
  b = hn::Set(d, from[1]);
#else
  hn::LoadInterleaved2(d, from, a, b);
#endif
}
template <class D>
HWY_INLINE void store_pairs(D d, hn::Vec<D> a, hn::Vec<D> b, float* to) {
#if HWY_TARGET == HWY_SCALAR
  to[0] = hn::GetLane(a);
  to[1] = hn::GetLane(b);
  static_cast<void>(d);
#else
  hn::StoreInterleaved2(a, b, d, to);
#endif
}
// A group of BF16 is in this order anyway.
template <class D>
HWY_INLINE void load_pairs(D d, const bf16* from, hn::Vec<D>& a, hn::Vec<D>& b) {
  const auto group = load_group<2>(d, from);
  a = group.v[0];
  b = group.v[1];
}
template <class D>
HWY_INLINE void store_pairs(D d, hn::Vec<D> a, hn::Vec<D> b, bf16* to) {
  VectorGroup<D, 2> group = {{a, b}};
  store_group(d, group, to);
}

// Like rotate_heads(), for pairs of neighbours.
template <typename A>
HWY_NOINLINE void rotate_neighbours(const Heads<A>& heads, int64_t half, const float* cos, const float* sin,
                                    bool inverse) {
  const FloatTag d;
  const auto factor = hn::Set(d, heads.factor);
  const auto sign = hn::Set(d, inverse ? -heads.factor : heads.factor);
  int64_t i = 0;
  for (; i + lanes(d) <= half; i += lanes(d)) {
    const auto c = hn::Mul(factor, hn::LoadU(d, cos + i)), s = hn::Mul(sign, hn::LoadU(d, sin + i));
    for (int64_t head = 0; head < heads.count; ++head) {
      A* const pairs = heads.first + head * heads.head_dim + 2 * i;
      hn::Vec<FloatTag> a = c, b = c;
      load_pairs(d, pairs, a, b);
      store_pairs(d, hn::NegMulAdd(b, s, hn::Mul(a, c)), hn::MulAdd(a, s, hn::Mul(b, c)), pairs);
    }
  }
  for (; i < half; ++i) {
    const float c = heads.factor * cos[i], s = (inverse ? -heads.factor : heads.factor) * sin[i];
    for (int64_t head = 0; head < heads.count; ++head) {
      A* const pair = heads.first + head * heads.head_dim + 2 * i;
      const float a = to_float(pair[0]), b = to_float(pair[1]);
      pair[0] = from_float<A>(a * c - b * s);
      pair[1] = from_float<A>(b * c + a * s);
    }
  }
}

// Elements of every head from `begin` on, which are not rotated.
template <typename A>
HWY_NOINLINE void scale_rest(const Heads<A>& heads, int64_t begin) {
  const FloatTag d;
  const auto factor = hn::Set(d, heads.factor);
  for (int64_t head = 0; head < heads.count; ++head) {
    A* const rest = heads.first + head * heads.head_dim + begin;
    for_each_vector(d, heads.head_dim - begin, [&](auto access, int64_t i) HWY_ATTR {
      access.store(d, hn::Mul(factor, access.load(d, rest + i)), rest + i);
    });
  }
}

void rotate_hwy(TensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> positions,
                const RopeTable& table, bool inverse, ThreadPool& pool) {
  const int64_t Q = shape.qkv_width(), E = shape.head_dim, half = table.cos.dim(1);
  const int64_t H = shape.num_heads, G = shape.num_key_value_heads;
  const float *const cos = table.cos.as<float>(), *const sin = table.sin.as<float>();
  const float* const scale = table.query_scale.empty() ? nullptr : table.query_scale.as<float>();
  const int64_t block_rows = std::max<int64_t>(1, kBlockElements / Q);
  with_activation_type(qkv_TQ.dtype(), [&]<typename A>(A) {
    A* const qkv = qkv_TQ.as<A>();
    const auto rotate = [&](const Heads<A>& heads, int64_t position) {
      const float *const c = cos + position * half, *const s = sin + position * half;
      table.interleaved ? rotate_neighbours(heads, half, c, s, inverse)
                        : rotate_heads(heads, half, c, s, inverse);
    };
    pool.parallel_blocks(qkv_TQ.dim(0), block_rows, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t position = positions[static_cast<size_t>(t)];
        A* const row = qkv + t * Q;
        if (scale == nullptr) {
          rotate({row, H + G, E, 1}, position);
          continue;
        }
        const Heads<A> queries = {row, H, E, scale[position]};
        rotate(queries, position);
        if (2 * half < E) scale_rest(queries, 2 * half);
        rotate({row + H * E, G, E, 1}, position);
      }
    });
  });
}

const RopeKernels kKernels = {.rotate = rotate_hwy};

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

std::vector<Implementation<RopeKernels>> rope_hwy() { return TESSERA_HWY_TABLE(kKernels); }

}  // namespace tessera
#endif
