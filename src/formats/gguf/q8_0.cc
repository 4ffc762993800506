#include "formats/gguf/q8_0.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/float_types.h"

namespace tessera {

void quantize_q8_0(const float* x, int64_t count, std::byte* out) {
  for (; count > 0; count -= kQ8BlockElements, x += kQ8BlockElements, out += kQ8BlockBytes) {
    float largest = 0;
    for (int64_t i = 0; i < kQ8BlockElements; ++i) largest = std::max(largest, std::fabs(x[i]));
    const float scale = largest / 127.0f;
    // Below the normal numbers, where 1 / scale could overflow, d is 0 as F16, whatever q is.
    const float inverse = scale < std::numeric_limits<float>::min() ? 0.0f : 1.0f / scale;
    std::array<int8_t, kQ8BlockElements> q;
    for (int64_t i = 0; i < kQ8BlockElements; ++i) {
      const float value = x[i] * inverse;
      // std::round() without a call, so that the loop is vectorized; the fraction is exact.
      const auto whole = static_cast<int32_t>(value);
      const float fraction = value - static_cast<float>(whole);
      q[static_cast<size_t>(i)] = static_cast<int8_t>(whole + (fraction >= 0.5f) - (fraction <= -0.5f));
    }
    const f16 stored = to_f16(scale);
    std::memcpy(out, &stored, sizeof(stored));
    std::memcpy(out + sizeof(stored), q.data(), q.size());
  }
}

}  // namespace tessera
