// ggml's Q8_0: blocks of 32 values as an F16 scale d and 32 signed bytes q, value = d * q.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tessera {

inline constexpr int64_t kQ8BlockElements = 32;
inline constexpr int64_t kQ8BlockBytes = 34;

// d = max|x| / 127, q = x / d rounded to nearest, ties away from zero, as ggml's quantize_row_q8_0_ref
// computes them. `count` is a multiple of 32; `out` takes count / 32 * 34 bytes.
void quantize_q8_0(const float* x, int64_t count, std::byte* out);

}  // namespace tessera
