#include "kernels/rank_sum/rank_sum_impl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/rank_sum/rank_sum_hwy.cc"
#include <hwy/cache_control.h>
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

// Vectors summed side by side: with AVX-512 each visit to an input takes four cache lines.
constexpr size_t kVectors = 4;

// Positions of a range processed in turn. Memory serves several streams faster than one: reduce_scatter
// between two hosts on two cores that round and sum 128 KiB at a time gains 8 %.
constexpr int64_t kStreams = 4;

// Calls body(i) for every whole step of [begin, end); returns the first remaining element.
template <class Body>
HWY_INLINE int64_t for_each_step(int64_t begin, int64_t end, int64_t step, Body&& body) {
  const int64_t each = (end - begin) / (kStreams * step) * step;
  for (int64_t i = begin; i < begin + each; i += step) {
    for (int64_t stream = 0; stream < kStreams; ++stream) body(i + stream * each);
  }
  int64_t i = begin + kStreams * each;
  for (; i + step <= end; i += step) body(i);
  return i;
}

template <size_t N, class D, class Access, typename T>
HWY_INLINE void add_to(D d, const Access& access, const T* from, hn::Vec<D> (&sum)[N]) {
  prefetch_ahead<N, T>(d, from);
  for (size_t k = 0; k < N; ++k) sum[k] = hn::Add(sum[k], access.load(d, from + k * hn::Lanes(d)));
}

template <size_t N, class D, class Access, typename T>
HWY_INLINE void load_to(D d, const Access& access, const T* from, hn::Vec<D> (&sum)[N]) {
  prefetch_ahead<N, T>(d, from);
  for (size_t k = 0; k < N; ++k) sum[k] = access.load(d, from + k * hn::Lanes(d));
}

// Elements i to i + N lanes(d), or the part of a vector that `access` covers.
template <size_t N, class D, class Access>
HWY_INLINE void sum_at(D d, const Access& access, std::span<const RankInput> inputs, Update update,
                       const float* y, int64_t i, hn::Vec<D> (&sum)[N]) {
  const RankInput& first = inputs[0];
  if (first.is_bf16()) {
    load_to(d, access, first.as_bf16() + i, sum);
  } else {
    load_to(d, access, first.f32() + i, sum);
  }
  for (size_t r = 1; r < inputs.size(); ++r) {
    const RankInput& input = inputs[r];
    if (input.is_bf16()) {
      add_to(d, access, input.as_bf16() + i, sum);
    } else {
      add_to(d, access, input.f32() + i, sum);
    }
  }
  if (update == Update::kAdd) {
    for (size_t k = 0; k < N; ++k) sum[k] = hn::Add(access.load(d, y + i + k * hn::Lanes(d)), sum[k]);
  }
}

void sum_hwy(std::span<const RankInput> inputs, Update update, Stores stores, float* y, int64_t begin,
             int64_t end) {
  const FloatTag d;
  // Streaming stores require aligned addresses; the parts of ranks are aligned.
  const auto vector_bytes = static_cast<uintptr_t>(lanes(d)) * sizeof(float);
  const bool streams =
      stores == Stores::kStreaming && reinterpret_cast<uintptr_t>(y + begin) % vector_bytes == 0;
  const int64_t step = static_cast<int64_t>(kVectors) * lanes(d);
  const int64_t rest = for_each_step(begin, end, step, [&](int64_t i) TESSERA_LOOP_BODY {
    hn::Vec<FloatTag> sum[kVectors];
    if (!streams) prefetch_ahead<kVectors, float>(d, y + i);
    sum_at(d, WholeVector(), inputs, update, y, i, sum);
    for (size_t k = 0; k < kVectors; ++k) {
      float* const to = y + i + k * hn::Lanes(d);
      if (streams) {
        hn::Stream(sum[k], d, to);
      } else {
        hn::StoreU(sum[k], d, to);
      }
    }
  });
  for_each_vector(d, end - rest, [&](auto access, int64_t i) HWY_ATTR {
    hn::Vec<FloatTag> sum[1];
    sum_at(d, access, inputs, update, y, rest + i, sum);
    access.store(d, sum[0], y + rest + i);
  });
  if (streams) hwy::FlushStream();
}

void round_hwy(const float* x, bf16* y, int64_t begin, int64_t end) {
  const FloatTag d;
  const auto round_group = [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    prefetch_ahead<access.kVectors, float>(d, x + i);
    auto values = access.template load_as<bf16>(d, x + i);
    access.store(d, values, y + i);
  };
  constexpr size_t kGroup = 4;
  const int64_t rest =
      for_each_step(begin, end, static_cast<int64_t>(kGroup) * lanes(d),
                    [&](int64_t i) TESSERA_LOOP_BODY { round_group(WholeGroup<kGroup>(), i); });
  for_each_group<kGroup>(d, end - rest,
                         [&](auto access, int64_t i) TESSERA_LOOP_BODY { round_group(access, rest + i); });
}

const RankSumKernels kKernels = {.sum = sum_hwy, .round = round_hwy};

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

std::vector<Implementation<RankSumKernels>> rank_sum_hwy() { return TESSERA_HWY_TABLE(kKernels); }

}  // namespace tessera
#endif
