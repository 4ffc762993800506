// Products of 8-bit codes. Sums are exact in every implementation.
#include <algorithm>

#include "kernels/gemm/onednn_products.h"
#include "kernels/quantized_weight/quantized_weight_impl.h"

namespace tessera {
namespace {

// oneDNN's, with the instructions that add four products to 32 bits at once (AVX-512 VNNI, or AMX if oneDNN
// may use it): before them it saturates sums of two at 16 bits.
void multiply_vnni(const Int8Product& p, std::byte* /*scratch*/) {
  onednn_igemm(p.b_is_transposed, p.m, p.n, p.k, p.a, p.a_stride, p.b, p.b_stride, p.c, p.c_stride);
}

// Parts of a product: sums of 512 KiB, and as many rows for each time that a part of the weight is packed.
// oneDNN 2.6 on one Zen 5 core, k = 4096, GOP/s: 256 rows 745, 512 rows 860, 1024 rows 830.
constexpr int64_t kRows = 512;
constexpr int64_t kColumns = 256;
// A packed block of 9984 x 384 codes and its partner.
constexpr int64_t kOneDnnBytes = int64_t{4} << 20;

// Other processors widen the codes to float32; sums of up to 1,024 products are exact: 127^2 1024 < 2^24.
constexpr int64_t kDepth = 1024;
constexpr int64_t kTileFloats = kRows * kDepth + kColumns * kDepth + kRows * kColumns;

void widen(const int8_t* from, int64_t stride, int64_t rows, int64_t columns, float* to) {
  for (int64_t i = 0; i < rows; ++i) {
    std::transform(from + i * stride, from + i * stride + columns, to + i * columns,
                   [](int8_t code) { return static_cast<float>(code); });
  }
}

void multiply_tiles(const Int8Product& p, std::byte* scratch) {
  auto* const a = reinterpret_cast<float*>(scratch);
  float* const b = a + kRows * kDepth;
  float* const c = b + kColumns * kDepth;
  for (int64_t i = 0; i < p.m; ++i) std::fill_n(p.c + i * p.c_stride, p.n, 0);
  for (int64_t begin = 0; begin < p.k; begin += kDepth) {
    const int64_t depth = std::min(kDepth, p.k - begin);
    widen(p.a + begin, p.a_stride, p.m, depth, a);
    if (p.b_is_transposed) {
      widen(p.b + begin, p.b_stride, p.n, depth, b);
    } else {
      widen(p.b + begin * p.b_stride, p.b_stride, depth, p.n, b);
    }
    onednn_sgemm(false, p.b_is_transposed, p.m, p.n, depth, a, depth, b, p.b_is_transposed ? depth : p.n, 0,
                 c, p.n);
    for (int64_t i = 0; i < p.m; ++i) {
      int32_t* const row = p.c + i * p.c_stride;
      for (int64_t j = 0; j < p.n; ++j) row[j] += static_cast<int32_t>(c[i * p.n + j]);
    }
  }
}

void multiply_ref(const Int8Product& p, std::byte* /*scratch*/) {
  for (int64_t i = 0; i < p.m; ++i) {
    for (int64_t j = 0; j < p.n; ++j) {
      int32_t sum = 0;
      for (int64_t l = 0; l < p.k; ++l) {
        sum +=
            p.a[i * p.a_stride + l] * (p.b_is_transposed ? p.b[j * p.b_stride + l] : p.b[l * p.b_stride + j]);
      }
      p.c[i * p.c_stride + j] = sum;
    }
  }
}

}  // namespace

const DispatchTable<Int8Kernels>& int8_product_table() {
  constexpr int64_t kTileBytes = kTileFloats * static_cast<int64_t>(sizeof(float));
  static const DispatchTable<Int8Kernels> table(
      "int8 product",
      {{"amx", Isa::kAmxBf16, kInt8Amx, amx_int8_refusal},
       {"vnni", Isa::kAvx512Bf16, {kRows, kColumns, 0, kOneDnnBytes, false, multiply_vnni}, limit_onednn},
       {"float_tiles", Isa::kAvx512, {kRows, kColumns, kTileBytes, 0, false, multiply_tiles}, limit_onednn},
       {"float_tiles", Isa::kAvx2, {kRows, kColumns, kTileBytes, 0, false, multiply_tiles}, limit_onednn},
       {"ref", Isa::kRef, {kRows, kColumns, 0, 0, false, multiply_ref}}});
  return table;
}

}  // namespace tessera
