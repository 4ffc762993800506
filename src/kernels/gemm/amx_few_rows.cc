#include "kernels/gemm/amx_few_rows.h"

#include <algorithm>

#include "base/float_types.h"
#include "kernels/amx/tiles.h"

TESSERA_AMX_BEGIN
namespace tessera::amx {
namespace {

constexpr int64_t kVector = 32;  // bf16 elements
constexpr int64_t kGroup = 4;    // 4 x 4 sums from 8 loads
constexpr int64_t kTaskRows = 64;

inline __m512bh load(const bf16* from, __mmask32 mask) {
  return (__m512bh)_mm512_maskz_loadu_epi16(mask, from);
}

// Dot products of kRows rows of w with kTokens rows of x. The order of summation depends only on K.
template <int64_t kRows, int64_t kTokens>
void dot_products(const bf16* w, const bf16* x, int64_t K, float (&sums)[kGroup][kGroup]) {
  __m512 sum[kRows][kTokens];
  for (auto& row : sum) {
    for (__m512& s : row) s = _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < K; k += kVector) {
    const auto mask = static_cast<__mmask32>((uint64_t{1} << std::min(kVector, K - k)) - 1);
    __m512bh tokens[kTokens];
    for (int64_t t = 0; t < kTokens; ++t) tokens[t] = load(x + t * K + k, mask);
    for (int64_t n = 0; n < kRows; ++n) {
      const __m512bh weights = load(w + n * K + k, mask);
      for (int64_t t = 0; t < kTokens; ++t) sum[n][t] = _mm512_dpbf16_ps(sum[n][t], weights, tokens[t]);
    }
  }
  for (int64_t n = 0; n < kRows; ++n) {
    for (int64_t t = 0; t < kTokens; ++t) sums[n][t] = _mm512_reduce_add_ps(sum[n][t]);
  }
}

using DotProducts = void (*)(const bf16*, const bf16*, int64_t, float (&)[kGroup][kGroup]);
constexpr DotProducts kDotProducts[kGroup][kGroup] = {
    {dot_products<1, 1>, dot_products<1, 2>, dot_products<1, 3>, dot_products<1, 4>},
    {dot_products<2, 1>, dot_products<2, 2>, dot_products<2, 3>, dot_products<2, 4>},
    {dot_products<3, 1>, dot_products<3, 2>, dot_products<3, 3>, dot_products<3, 4>},
    {dot_products<4, 1>, dot_products<4, 2>, dot_products<4, 3>, dot_products<4, 4>}};

}  // namespace

void few_rows_forward(ConstTensorView x_TK, ConstTensorView w_NK, ConstTensorView bias_N, TensorView y_TN,
                      ThreadPool& pool) {
  const int64_t T = x_TK.dim(0), K = x_TK.dim(1), N = w_NK.dim(0);
  const bf16* bias = bias_N.empty() ? nullptr : bias_N.as<bf16>();
  pool.parallel_blocks(N, kTaskRows, [&](int64_t begin, int64_t end) {
    for (int64_t n = begin; n < end; n += kGroup) {
      const int64_t rows = std::min(kGroup, end - n);
      for (int64_t t = 0; t < T; t += kGroup) {
        const int64_t tokens = std::min(kGroup, T - t);
        float sums[kGroup][kGroup];
        kDotProducts[rows - 1][tokens - 1](w_NK.as<bf16>() + n * K, x_TK.as<bf16>() + t * K, K, sums);
        for (int64_t i = 0; i < tokens; ++i) {
          for (int64_t j = 0; j < rows; ++j) {
            const float value = sums[j][i] + (bias == nullptr ? 0.0f : to_float(bias[n + j]));
            const int64_t at = (t + i) * N + n + j;
            if (y_TN.dtype() == DType::kF32) {
              y_TN.as<float>()[at] = value;
            } else {
              y_TN.as<bf16>()[at] = to_bf16(value);
            }
          }
        }
      }
    }
  });
}

}  // namespace tessera::amx
TESSERA_AMX_END
