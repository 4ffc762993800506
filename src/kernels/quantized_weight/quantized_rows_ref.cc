#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/float_types.h"
#include "kernels/quantized_weight/gradient_blocks.h"
#include "kernels/quantized_weight/quantized_form.h"
#include "kernels/quantized_weight/quantized_weight_impl.h"

namespace tessera {
namespace {

template <typename A>
float quantize_ref(const A* x, const float* factors, int64_t count, int8_t* codes) {
  const auto value = [&](int64_t i) { return to_float(x[i]) * (factors == nullptr ? 1.0f : factors[i]); };
  uint32_t largest = 0;  // as bits, NaN above infinity above all else
  for (int64_t i = 0; i < count; ++i) {
    largest = std::max(largest, std::bit_cast<uint32_t>(value(i)) & 0x7FFFFFFFu);
  }
  const auto magnitude = std::bit_cast<float>(largest);
  std::fill_n(codes, count, int8_t{0});
  if (!is_finite(magnitude)) return std::numeric_limits<float>::quiet_NaN();
  if (magnitude < 0x1p-100f) return 0;
  const float inverse = 127.0f / magnitude;
  for (int64_t i = 0; i < count; ++i) codes[i] = static_cast<int8_t>(std::nearbyint(value(i) * inverse));
  return magnitude / 127.0f;
}

template <typename A, typename Y>
void scale_sums_ref(const int32_t* sums, float scale, const float* scales, const A* bias, int64_t count,
                    Y* y) {
  for (int64_t i = 0; i < count; ++i) {
    const float factor = scales == nullptr ? scale : scale * scales[i];
    const float result = static_cast<float>(sums[i]) * factor;
    y[i] = from_float<Y>(bias == nullptr ? result : result + to_float(bias[i]));
  }
}

template <typename A>
void dequantize_nf4_ref(const uint8_t* codes, const float* scales, int64_t count, A* to) {
  for (int64_t i = 0; i < count; ++i) {
    const int code = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
    to[i] = from_float<A>(kNf4Values[code] * scales[i / kNf4Block]);
  }
}

template <typename A>
void dequantize_int8_ref(const int8_t* codes, float scale, int64_t count, A* to) {
  for (int64_t i = 0; i < count; ++i) to[i] = from_float<A>(static_cast<float>(codes[i]) * scale);
}

float quantize_with_feedback_ref(const float* x, const bf16* feedback, int64_t count, int limit,
                                 int8_t* codes, bf16* new_feedback) {
  float c[kGradientBlock];
  uint32_t largest = 0;  // as above
  for (int64_t i = 0; i < count; ++i) {
    c[i] = x[i] + to_float(feedback[i]);
    largest = std::max(largest, std::bit_cast<uint32_t>(c[i]) & 0x7FFFFFFFu);
  }
  const auto magnitude = std::bit_cast<float>(largest);
  const bool is_coded = is_finite(magnitude) && magnitude >= 0x1p-100f;
  const float inverse = is_coded ? static_cast<float>(limit) / magnitude : 0;
  const float scale = is_coded               ? magnitude / static_cast<float>(limit)
                      : is_finite(magnitude) ? 0
                                             : std::numeric_limits<float>::quiet_NaN();
  for (int64_t i = 0; i < count; ++i) {
    codes[i] = static_cast<int8_t>(is_coded ? std::nearbyint(c[i] * inverse) : 0);
    if (new_feedback == nullptr) continue;
    new_feedback[i] = to_bf16(is_finite(magnitude) ? c[i] - static_cast<float>(codes[i]) * scale : 0);
  }
  return scale;
}

template <typename A>
constexpr QuantizedRowKernels<A> kRows = {quantize_ref<A>, scale_sums_ref<A, A>, scale_sums_ref<A, float>,
                                          dequantize_nf4_ref<A>, dequantize_int8_ref<A>};

}  // namespace

std::vector<Implementation<QuantizedKernels>> quantized_rows_ref() {
  return {{"ref", Isa::kRef, {kRows<bf16>, kRows<float>, quantize_with_feedback_ref}}};
}

}  // namespace tessera
