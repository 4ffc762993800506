#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cross_entropy/cross_entropy_impl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cross_entropy/cross_entropy_hwy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Elements summed in float32 before the sum moves to double, so that the error does not grow with V.
constexpr int64_t kSumBlock = 256;

// Logits whose maximum is found before their exponentials are summed: 4 KiB, so that memory is read once and
// the second walk finds them in L1. The second walk prefetches the next block: it is compute-bound, whereas
// the first only waits for memory.
constexpr int64_t kMaxBlock = 1024;

// Maximum over whole groups of vectors; unspecified if one of them is NaN.
HWY_INLINE float max_of(const float* x, int64_t count) {
  const FloatTag d;
  constexpr size_t N = kExpVectors;
  hn::Vec<FloatTag> max[N];
  for (auto& m : max) m = hn::Set(d, -std::numeric_limits<float>::infinity());
  for (int64_t v = 0; v < count; v += static_cast<int64_t>(N) * lanes(d)) {
    const auto group = load_group<N>(d, x + v);
    for (size_t k = 0; k < N; ++k) max[k] = hn::Max(max[k], group.v[k]);
  }
  auto largest = max[0];
  for (size_t k = 1; k < N; ++k) largest = hn::Max(largest, max[k]);
  return hn::GetLane(hn::MaxOfLanes(d, largest));
}

// sum_v exp(x_v - max) of whole groups of vectors.
HWY_INLINE double sum_of_exps(const float* x, int64_t count, float max) {
  const FloatTag d;
  constexpr size_t N = kExpVectors;
  const auto shift = hn::Set(d, max);
  double total = 0;
  for (int64_t begin = 0; begin < count; begin += kSumBlock) {
    hn::Vec<FloatTag> sums[N];
    for (auto& sum : sums) sum = hn::Zero(d);
    const int64_t end = std::min(count, begin + kSumBlock);
    for (int64_t v = begin; v < end; v += static_cast<int64_t>(N) * lanes(d)) {
      prefetch_ahead<N, float>(d, x + v, kMaxBlock * sizeof(float));
      auto group = load_group<N>(d, x + v);
      for (size_t k = 0; k < N; ++k) group.v[k] = hn::Sub(group.v[k], shift);
      exp_nonpositive_normal(d, group.v);
      for (size_t k = 0; k < N; ++k) sums[k] = hn::Add(sums[k], group.v[k]);
    }
    auto sum = sums[0];
    for (size_t k = 1; k < N; ++k) sum = hn::Add(sum, sums[k]);
    total += static_cast<double>(sum_of_lanes(d, sum));
  }
  return total;
}

// Adds `count` logits, whole groups of vectors, to the sum. A NaN or +infinity makes it NaN.
HWY_INLINE void add_block(const float* x, int64_t count, SoftmaxSum* result) {
  const float max = max_of(x, count);
  if (max > result->max) {
    result->sum_exp *= std::exp(static_cast<double>(result->max) - static_cast<double>(max));
    result->max = max;
  }
  if (result->max == -std::numeric_limits<float>::infinity()) {
    // No finite maximum yet: nothing to add, unless max_of lost a NaN.
    for (int64_t v = 0; v < count; ++v) {
      if (std::isnan(x[v])) result->sum_exp = x[v];
    }
  } else {
    result->sum_exp += sum_of_exps(x, count, result->max);
  }
}

HWY_NOINLINE SoftmaxSum softmax_sum(const float* x, int64_t V) {
  const FloatTag d;
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  const int64_t step = static_cast<int64_t>(kExpVectors) * lanes(d), whole = V / step * step;
  SoftmaxSum result = {-kInfinity, 0};
  for (int64_t begin = 0; begin < whole; begin += kMaxBlock) {
    add_block(x + begin, std::min(kMaxBlock, whole - begin), &result);
  }
  if (whole < V) {
    float rest[kExpVectors * hn::MaxLanes(FloatTag())];
    std::fill_n(std::copy(x + whole, x + V, rest), step - (V - whole), -kInfinity);
    add_block(rest, step, &result);
  }
  if (std::isnan(result.sum_exp)) result.max = std::numeric_limits<float>::quiet_NaN();
  return result;
}

// sum_v x_v.
HWY_NOINLINE double sum_of_logits(const float* x, int64_t V) {
  const FloatTag d;
  double total = 0;
  for (int64_t begin = 0; begin < V; begin += kSumBlock) {
    auto sum = hn::Zero(d);
    int64_t v = begin;
    const int64_t end = std::min(V, begin + kSumBlock);
    for (; v + lanes(d) <= end; v += lanes(d)) sum = hn::Add(sum, hn::LoadU(d, x + v));
    total += static_cast<double>(sum_of_lanes(d, sum));
    for (; v < end; ++v) total += static_cast<double>(x[v]);
  }
  return total;
}

// dx_v = factor exp(x_v - max) - offset.
template <typename A>
HWY_NOINLINE void gradient(const float* x, int64_t V, float max, double factor, double offset, A* dx) {
  const FloatTag d;
  const auto shift = hn::Set(d, max);
  const auto scale = hn::Set(d, static_cast<float>(factor)), minus = hn::Set(d, static_cast<float>(offset));
  for_each_group<kExpVectors>(d, V, [&](auto access, int64_t v) TESSERA_LOOP_BODY {
    prefetch_ahead<access.kVectors, float>(d, x + v);
    prefetch_ahead<access.kVectors, A>(d, dx + v);
    auto p = access.template load_as<A>(d, x + v);
    for (size_t k = 0; k < access.kVectors; ++k) p.v[k] = hn::Sub(p.v[k], shift);
    exp_nonpositive_normal(d, p.v);
    for (size_t k = 0; k < access.kVectors; ++k) p.v[k] = hn::MulSub(p.v[k], scale, minus);
    access.store(d, p, dx + v);
  });
}

const CrossEntropyKernels kKernels = {.softmax_sum = softmax_sum,
                                      .sum = sum_of_logits,
                                      .gradient_f32 = gradient<float>,
                                      .gradient_bf16 = gradient<bf16>};

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

std::vector<Implementation<CrossEntropyKernels>> cross_entropy_hwy() { return TESSERA_HWY_TABLE(kKernels); }

}  // namespace tessera
#endif
