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

// Rotates element i of every head before element i + 1 of any: cos and sin, which all heads share, stay in
// registers.
template <typename A>
HWY_NOINLINE void rotate_heads(A* row, int64_t num_heads, int64_t half, const float* cos, const float* sin,
                               bool inverse) {
  const FloatTag d;
  const auto sign = hn::Set(d, inverse ? -1.0f : 1.0f);
  for_each_group<4>(d, half, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    constexpr size_t N = access.kVectors;
    const auto c = access.template load_as<A>(d, cos + i);
    auto s = access.template load_as<A>(d, sin + i);
    for (size_t k = 0; k < N; ++k) s.v[k] = hn::Mul(sign, s.v[k]);
    for (int64_t head = 0; head < num_heads; ++head) {
      A* const first = row + head * 2 * half + i;
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

void rotate_hwy(TensorView qkv_TQ, const AttentionShape& shape, std::span<const int32_t> positions,
                const RopeTable& table, bool inverse, ThreadPool& pool) {
  const int64_t Q = shape.qkv_width(), half = table.cos.dim(1);
  const float *const cos = table.cos.as<float>(), *const sin = table.sin.as<float>();
  const int64_t block_rows = std::max<int64_t>(1, kBlockElements / Q);
  with_activation_type(qkv_TQ.dtype(), [&]<typename A>(A) {
    A* const qkv = qkv_TQ.as<A>();
    pool.parallel_blocks(qkv_TQ.dim(0), block_rows, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t) {
        const int64_t angle = positions[static_cast<size_t>(t)] * half;
        rotate_heads(qkv + t * Q, shape.num_heads + shape.num_key_value_heads, half, cos + angle, sin + angle,
                     inverse);
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
