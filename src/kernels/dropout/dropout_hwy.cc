#include <algorithm>

#include "kernels/activation_type.h"
#include "kernels/dropout/dropout_impl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/dropout/dropout_hwy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/dropout/dropout_numbers-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {
namespace {

constexpr int64_t kRowsPerTask = 16;  // 16 Ki elements of a usual width

// Elements [0, count) whose numbers are known.
template <typename A>
HWY_INLINE void drop_elements(const A* x, const uint16_t* numbers, int64_t count, uint32_t threshold,
                              float scale, Update update, A* y) {
  const FloatTag d;
  const hn::Rebind<uint16_t, FloatTag> d16;
  const hn::Rebind<int32_t, FloatTag> d32;
  const auto limit = hn::Set(d32, static_cast<int32_t>(threshold));
  const auto factor = hn::Set(d, scale);
  for_each_vector(d, count, [&](auto access, int64_t i) HWY_ATTR {
    const auto number = hn::PromoteTo(d32, hn::LoadU(d16, numbers + i));
    const auto is_dropped = hn::RebindMask(d, hn::Lt(number, limit));
    auto kept = hn::IfThenZeroElse(is_dropped, hn::Mul(factor, access.load(d, x + i)));
    if (update == Update::kAdd) kept = hn::Add(access.load(d, y + i), kept);
    access.store(d, kept, y + i);
  });
}

template <typename A>
HWY_NOINLINE void drop_row(const A* x, uint64_t site, uint64_t token, int64_t count, uint32_t threshold,
                           float scale, Update update, A* y) {
  HWY_ALIGN uint16_t numbers[kMaxDropoutBatch];
  for (int64_t begin = 0; begin < count; begin += dropout_batch()) {
    fill_dropout_numbers(site, token, begin, numbers);
    drop_elements(x + begin, numbers, std::min(dropout_batch(), count - begin), threshold, scale, update,
                  y + begin);
  }
}

void dropout_rows_hwy(ConstTensorView x_TD, const Dropout& which, TensorView y_TD, Update update,
                      ThreadPool& pool) {
  const int64_t D = x_TD.dim(1);
  const uint32_t threshold = which.threshold();
  const float scale = which.scale();
  with_activation_type(x_TD.dtype(), [&]<typename A>(A) {
    pool.parallel_blocks(x_TD.dim(0), kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t t = begin; t < end; ++t)
        drop_row(x_TD.as<A>() + t * D, which.site, which.tokens[static_cast<size_t>(t)], D, threshold, scale,
                 update, y_TD.as<A>() + t * D);
    });
  });
}

const DropoutKernels kKernels = {.dropout = dropout_rows_hwy};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

std::vector<Implementation<DropoutKernels>> dropout_hwy() { return TESSERA_HWY_TABLE(kKernels); }

}  // namespace tessera
#endif
