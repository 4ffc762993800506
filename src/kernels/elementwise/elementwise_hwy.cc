#include <algorithm>

#include "kernels/activation_type.h"
#include "kernels/elementwise/elementwise_impl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/elementwise_hwy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/soft_cap-inl.h"
#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Elements a thread takes at a time: 128 KiB of float32.
constexpr int64_t kAddBlock = 32 * 1024;

void add_hwy(TensorView x, ConstTensorView y, ThreadPool& pool) {
  with_activation_type(x.dtype(), [&]<typename A>(A) {
    A* const x_all = x.as<A>();
    const A* const y_all = y.as<A>();
    pool.parallel_blocks(x.num_elements(), kAddBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
      const FloatTag d;
      A* to = x_all + begin;
      const A* from = y_all + begin;
      for_each_group<4>(d, end - begin, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
        prefetch_ahead<access.kVectors, A>(d, to + i);
        prefetch_ahead<access.kVectors, A>(d, from + i);
        auto sum = access.load(d, to + i);
        const auto other = access.load(d, from + i);
        for (size_t k = 0; k < access.kVectors; ++k) sum.v[k] = hn::Add(sum.v[k], other.v[k]);
        access.store(d, sum, to + i);
      });
    });
  });
}

void scale_hwy(ConstTensorView x, float factor, TensorView y, ThreadPool& pool) {
  with_activation_type(x.dtype(), [&]<typename A>(A) {
    const A* const x_all = x.as<A>();
    A* const y_all = y.as<A>();
    pool.parallel_blocks(x.num_elements(), kAddBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
      const FloatTag d;
      const A* const from = x_all + begin;
      A* const to = y_all + begin;
      for_each_group<4>(d, end - begin, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
        prefetch_ahead<access.kVectors, A>(d, from + i);
        auto values = access.load(d, from + i);
        for (size_t k = 0; k < access.kVectors; ++k) values.v[k] = hn::Mul(values.v[k], hn::Set(d, factor));
        access.store(d, values, to + i);
      });
    });
  });
}

void soft_cap_hwy(TensorView x, float cap, ThreadPool& pool) {
  with_activation_type(x.dtype(), [&]<typename A>(A) {
    A* const x_all = x.as<A>();
    pool.parallel_blocks(x.num_elements(), kAddBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
      const FloatTag d;
      A* const to = x_all + begin;
      for_each_group<2>(d, end - begin, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
        auto values = access.load(d, to + i);
        for (size_t k = 0; k < access.kVectors; ++k)
          values.v[k] = tessera::HWY_NAMESPACE::soft_cap(d, values.v[k], cap);
        access.store(d, values, to + i);
      });
    });
  });
}

void soft_cap_backward_hwy(ConstTensorView y, float cap, TensorView dx, ThreadPool& pool) {
  const float* const y_all = y.as<float>();
  with_activation_type(dx.dtype(), [&]<typename A>(A) {
    A* const dx_all = dx.as<A>();
    pool.parallel_blocks(dx.num_elements(), kAddBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
      const FloatTag d;
      for_each_group<4>(d, end - begin, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
        const auto capped = access.template load_as<A>(d, y_all + begin + i);
        auto gradient = access.load(d, dx_all + begin + i);
        for (size_t k = 0; k < access.kVectors; ++k)
          gradient.v[k] = hn::Mul(gradient.v[k], soft_cap_slope(d, capped.v[k], cap));
        access.store(d, gradient, dx_all + begin + i);
      });
    });
  });
}

void round_to_hwy(ConstTensorView from, TensorView to, ThreadPool& pool) {
  const float* const from_all = from.as<float>();
  with_activation_type(to.dtype(), [&]<typename A>(A) {
    A* const to_all = to.as<A>();
    pool.parallel_blocks(to.num_elements(), kAddBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
      const FloatTag d;
      for_each_group<4>(d, end - begin, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
        prefetch_ahead<access.kVectors, float>(d, from_all + begin + i);
        prefetch_ahead<access.kVectors, A>(d, to_all + begin + i);
        auto values = access.template load_as<A>(d, from_all + begin + i);
        access.store(d, values, to_all + begin + i);
      });
    });
  });
}

// The squares of `count` elements in double, summed in eight vectors side by side.
HWY_NOINLINE double sum_of_block(const float* x, int64_t count) {
  constexpr size_t kSums = 8;
  const hn::ScalableTag<double> d;
  const hn::Rebind<float, decltype(d)> d32;
  hn::Vec<decltype(d)> sums[kSums];
  for (auto& sum : sums) sum = hn::Zero(d);
  const int64_t L = lanes(d), step = static_cast<int64_t>(kSums) * L;
  int64_t i = 0;
  for (; i + step <= count; i += step) {
    prefetch_ahead<kSums, float>(d, x + i);
    for (size_t k = 0; k < kSums; ++k) {
      const auto value = hn::PromoteTo(d, hn::LoadU(d32, x + i + static_cast<int64_t>(k) * L));
      sums[k] = hn::MulAdd(value, value, sums[k]);
    }
  }
  for_each_vector(d32, count - i, [&](auto access, int64_t rest) HWY_ATTR {
    const auto value = hn::PromoteTo(d, access.load(d32, x + i + rest));
    sums[0] = hn::MulAdd(value, value, sums[0]);
  });
  for (size_t half = kSums / 2; half > 0; half /= 2) {
    for (size_t k = 0; k < half; ++k) sums[k] = hn::Add(sums[k], sums[k + half]);
  }
  return sum_of_lanes(d, sums[0]);
}

double sum_of_squares_hwy(std::span<const float> x, std::span<std::byte> scratch, ThreadPool& pool) {
  auto* const block_sums = reinterpret_cast<double*>(scratch.data());
  const int64_t count = std::ssize(x);
  pool.parallel_blocks(count, kSumOfSquaresBlock, [&](int64_t begin, int64_t end) {
    block_sums[begin / kSumOfSquaresBlock] = sum_of_block(x.data() + begin, end - begin);
  });
  double sum = 0;
  for (int64_t block = 0; block * kSumOfSquaresBlock < count; ++block) sum += block_sums[block];
  return sum;
}

const ElementwiseKernels kKernels = {.add = add_hwy,
                                     .scale = scale_hwy,
                                     .soft_cap = soft_cap_hwy,
                                     .soft_cap_backward = soft_cap_backward_hwy,
                                     .round_to = round_to_hwy,
                                     .sum_of_squares = sum_of_squares_hwy};

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

std::vector<Implementation<ElementwiseKernels>> elementwise_hwy() { return TESSERA_HWY_TABLE(kKernels); }

}  // namespace tessera
#endif
