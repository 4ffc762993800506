#include <algorithm>
#include <limits>

#include "kernels/quantized_weight/gradient_blocks.h"
#include "kernels/quantized_weight/quantized_form.h"
#include "kernels/quantized_weight/quantized_weight_impl.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/quantized_weight/quantized_rows_hwy.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#include "kernels/vector-inl.h"

HWY_BEFORE_NAMESPACE();
namespace tessera {
namespace HWY_NAMESPACE {

using IntTag = hn::Rebind<int32_t, FloatTag>;

template <typename A>
float quantize_hwy(const A* x, const float* factors, int64_t count, int8_t* codes) {
  const FloatTag d;
  const IntTag di;
  const hn::Rebind<int8_t, FloatTag> d8;
  const auto value = [&](auto access, int64_t i) HWY_ATTR {
    const auto loaded = access.load(d, x + i);
    return factors == nullptr ? loaded : hn::Mul(loaded, access.load(d, factors + i));
  };
  auto largest = hn::Zero(di);
  for_each_vector(d, count, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    largest = hn::Max(largest, hn::BitCast(di, hn::Abs(value(access, i))));
  });
  const float magnitude = hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(di, largest)));
  if (!is_finite(magnitude) || magnitude < 0x1p-100f) {
    std::fill_n(codes, count, int8_t{0});
    return is_finite(magnitude) ? 0 : std::numeric_limits<float>::quiet_NaN();
  }
  const auto inverse = hn::Set(d, 127.0f / magnitude);
  for_each_vector(d, count, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    const auto code = hn::NearestInt(hn::Mul(value(access, i), inverse));
    access.store_raw(d8, hn::DemoteTo(d8, code), codes + i);
  });
  return magnitude / 127.0f;
}

float quantize_with_feedback_hwy(const float* x, const bf16* feedback, int64_t count, int limit,
                                 int8_t* codes, bf16* new_feedback) {
  const FloatTag d;
  const IntTag di;
  const hn::Rebind<int8_t, FloatTag> d8;
  float c[kGradientBlock];
  auto largest = hn::Zero(di);
  for_each_vector(d, count, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    const auto sum = hn::Add(access.load(d, x + i), access.load(d, feedback + i));
    access.store(d, sum, c + i);
    largest = hn::Max(largest, hn::BitCast(di, hn::Abs(sum)));
  });
  const float magnitude = hn::GetLane(hn::BitCast(d, hn::MaxOfLanes(di, largest)));
  if (!is_finite(magnitude) || magnitude < 0x1p-100f) {
    std::fill_n(codes, count, int8_t{0});
    if (new_feedback != nullptr) {
      for_each_vector(d, count, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
        access.store(d, is_finite(magnitude) ? access.load(d, c + i) : hn::Zero(d), new_feedback + i);
      });
    }
    return is_finite(magnitude) ? 0 : std::numeric_limits<float>::quiet_NaN();
  }
  const float scale = magnitude / static_cast<float>(limit);
  const auto inverse = hn::Set(d, static_cast<float>(limit) / magnitude);
  const auto step = hn::Set(d, scale);
  for_each_vector(d, count, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    const auto value = access.load(d, c + i);
    const auto code = hn::NearestInt(hn::Mul(value, inverse));
    access.store_raw(d8, hn::DemoteTo(d8, code), codes + i);
    if (new_feedback == nullptr) return;
    access.store(d, hn::Sub(value, hn::Mul(hn::ConvertTo(d, code), step)), new_feedback + i);
  });
  return scale;
}

template <typename A, typename Y>
void scale_sums_hwy(const int32_t* sums, float scale, const float* scales, const A* bias, int64_t count,
                    Y* y) {
  const FloatTag d;
  const IntTag di;
  const auto all = hn::Set(d, scale);
  for_each_vector(d, count, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    const auto factor = scales == nullptr ? all : hn::Mul(all, access.load(d, scales + i));
    auto result = hn::Mul(hn::ConvertTo(d, access.load_raw(di, sums + i)), factor);
    if (bias != nullptr) result = hn::Add(result, access.load(d, bias + i));
    access.store(d, result, y + i);
  });
}

// kNf4Values of every lane.
HWY_INLINE hn::Vec<FloatTag> nf4_values(FloatTag d, hn::Vec<IntTag> codes) {
#if HWY_TARGET == HWY_SCALAR || HWY_TARGET == HWY_EMU128
  return hn::GatherIndex(d, kNf4Values, codes);  // a vector holds less than half of the table
#else
  if constexpr (hn::MaxLanes(FloatTag()) >= 16) {
    return hn::TableLookupLanes(hn::LoadU(d, kNf4Values), hn::IndicesFromVec(d, codes));
  } else {
    const IntTag di;
    const auto half = hn::IndicesFromVec(d, hn::And(codes, hn::Set(di, 7)));
    return hn::IfThenElse(hn::RebindMask(d, hn::Gt(codes, hn::Set(di, 7))),
                          hn::TableLookupLanes(hn::LoadU(d, kNf4Values + 8), half),
                          hn::TableLookupLanes(hn::LoadU(d, kNf4Values), half));
  }
#endif
}

HWY_INLINE void store_pairs(FloatTag d, hn::Vec<FloatTag> even, hn::Vec<FloatTag> odd, float* to) {
  hn::StoreInterleaved2(even, odd, d, to);
}
HWY_INLINE void store_pairs(FloatTag d, hn::Vec<FloatTag> even, hn::Vec<FloatTag> odd, bf16* to) {
#if HWY_TARGET == HWY_SCALAR
  store_floats(d, even, to);
  store_floats(d, odd, to + 1);
#else
  hn::StoreU(pack_bf16(d, even, odd), hn::Repartition<uint16_t, FloatTag>(), &to->bits);
#endif
}

template <typename A>
void dequantize_nf4_hwy(const uint8_t* codes, const float* scales, int64_t count, A* to) {
  const FloatTag d;
  const IntTag di;
  const hn::Rebind<uint8_t, FloatTag> d8;
  for (int64_t begin = 0; begin < count; begin += kNf4Block, ++scales) {
    const int64_t end = std::min(begin + kNf4Block, count);
    const auto scale = hn::Set(d, *scales);
    int64_t i = begin;
    for (; i + 2 * lanes(d) <= end; i += 2 * lanes(d)) {
      const auto pairs = hn::PromoteTo(di, hn::LoadU(d8, codes + i / 2));
      const auto even = hn::Mul(nf4_values(d, hn::ShiftRight<4>(pairs)), scale);
      const auto odd = hn::Mul(nf4_values(d, hn::And(pairs, hn::Set(di, 15))), scale);
      store_pairs(d, even, odd, to + i);
    }
    for (; i < end; ++i) {
      const int code = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
      to[i] = from_float<A>(kNf4Values[code] * *scales);
    }
  }
}

template <typename A>
void dequantize_int8_hwy(const int8_t* codes, float scale, int64_t count, A* to) {
  const FloatTag d;
  const IntTag di;
  const hn::Rebind<int8_t, FloatTag> d8;
  const auto all = hn::Set(d, scale);
  for_each_vector(d, count, [&](auto access, int64_t i) TESSERA_LOOP_BODY {
    const auto code = hn::ConvertTo(d, hn::PromoteTo(di, access.load_raw(d8, codes + i)));
    access.store(d, hn::Mul(code, all), to + i);
  });
}

template <typename A>
constexpr QuantizedRowKernels<A> kRows = {quantize_hwy<A>, scale_sums_hwy<A, A>, scale_sums_hwy<A, float>,
                                          dequantize_nf4_hwy<A>, dequantize_int8_hwy<A>};
const QuantizedKernels kKernels = {kRows<bf16>, kRows<float>, quantize_with_feedback_hwy};

}  // namespace HWY_NAMESPACE
}  // namespace tessera
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tessera {

std::vector<Implementation<QuantizedKernels>> quantized_rows_hwy() { return TESSERA_HWY_TABLE(kKernels); }

}  // namespace tessera
#endif
