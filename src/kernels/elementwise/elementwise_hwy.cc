#include <algorithm>

#include "kernels/activation_type.h"
#include "kernels/elementwise/elementwise_impl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/elementwise/elementwise_hwy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

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
      for_each_vector(d, end - begin, [&](auto access, int64_t i) HWY_ATTR {
        access.store(d, hn::Add(access.load(d, to + i), access.load(d, from + i)), to + i);
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
      for_each_vector(d, end - begin, [&](auto access, int64_t i) HWY_ATTR {
        access.store(d, access.load(d, from_all + begin + i), to_all + begin + i);
      });
    });
  });
}

// Elements between the one that is added and the one that is fetched: 2 KiB.
constexpr int64_t kPrefetchDistance = 512;

double sum_of_squares_hwy(std::span<const float> x, std::span<std::byte> scratch, ThreadPool& pool) {
  auto* const block_sums = reinterpret_cast<double*>(scratch.data());
  const int64_t count = std::ssize(x);
  pool.parallel_blocks(count, kSumOfSquaresBlock, [&](int64_t begin, int64_t end) HWY_ATTR {
    const hn::ScalableTag<double> d;
    const hn::Rebind<float, decltype(d)> d32;
    auto sum = hn::Zero(d);
    for_each_vector(d32, end - begin, [&](auto access, int64_t i) HWY_ATTR {
      __builtin_prefetch(x.data() + std::min(begin + i + kPrefetchDistance, end - 1));
      const auto value = hn::PromoteTo(d, access.load(d32, x.data() + begin + i));
      sum = hn::MulAdd(value, value, sum);
    });
    block_sums[begin / kSumOfSquaresBlock] = sum_of_lanes(d, sum);
  });
  double sum = 0;
  for (int64_t block = 0; block * kSumOfSquaresBlock < count; ++block) sum += block_sums[block];
  return sum;
}

const ElementwiseKernels kKernels = {
    .add = add_hwy, .round_to = round_to_hwy, .sum_of_squares = sum_of_squares_hwy};

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

std::vector<Implementation<ElementwiseKernels>> elementwise_hwy() { return TESSERA_HWY_TABLE(kKernels); }

}  // namespace tessera
#endif
