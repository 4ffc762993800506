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

// Elements summed in float32 before the sum moves to double: the error of a sum does not grow with V.
constexpr int64_t kSumBlock = 256;

// The largest logit; NaN when the row holds a NaN.
HWY_NOINLINE float row_max(const float* x, int64_t V) {
  const FloatTag d;
  const int64_t L = lanes(d);
  const auto lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  // Two maxima at a time: one chain of Max would wait for its latency.
  auto max0 = lowest, max1 = lowest;
  auto nan = hn::IsNaN(lowest);
  int64_t v = 0;
  for (; v + 2 * L <= V; v += 2 * L) {
    const auto x0 = hn::LoadU(d, x + v), x1 = hn::LoadU(d, x + v + L);
    max0 = hn::Max(max0, x0);
    max1 = hn::Max(max1, x1);
    nan = hn::Or(nan, hn::Or(hn::IsNaN(x0), hn::IsNaN(x1)));
  }
  float max = hn::GetLane(hn::MaxOfLanes(d, hn::Max(max0, max1)));
  bool any_nan = !hn::AllFalse(d, nan);
  for (; v < V; ++v) {
    max = std::max(max, x[v]);
    any_nan = any_nan || std::isnan(x[v]);
  }
  return any_nan ? std::numeric_limits<float>::quiet_NaN() : max;
}

// sum_v exp(x_v - max).
HWY_NOINLINE double sum_of_exps(const float* x, int64_t V, float max) {
  const FloatTag d;
  const auto shift = hn::Set(d, max);
  double total = 0;
  for (int64_t begin = 0; begin < V; begin += kSumBlock) {
    auto sum = hn::Zero(d);
    int64_t v = begin;
    const int64_t end = std::min(V, begin + kSumBlock);
    for (; v + lanes(d) <= end; v += lanes(d)) {
      sum = hn::Add(sum, exp_nonpositive_normal(d, hn::Sub(hn::LoadU(d, x + v), shift)));
    }
    total += static_cast<double>(sum_of_lanes(d, sum));
    for (; v < end; ++v) total += std::exp(static_cast<double>(x[v]) - static_cast<double>(max));
  }
  return total;
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
  for_each_vector(d, V, [&](auto access, int64_t v) HWY_ATTR {
    const auto p = exp_nonpositive_normal(d, hn::Sub(access.load(d, x + v), shift));
    access.store(d, hn::MulSub(p, scale, minus), dx + v);
  });
}

const CrossEntropyKernels kKernels = {.max = row_max,
                                      .sum_of_exps = sum_of_exps,
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
