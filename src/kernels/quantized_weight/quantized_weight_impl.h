// The implementations behind quantized_weight.h, for its dispatch and tests.
#pragma once

#include <vector>

#include "base/float_types.h"
#include "kernels/dispatch.h"

namespace tessera {

// Work on single rows; all implementations give the same bits.
template <typename A>
struct QuantizedRowKernels {
  // codes_i = x_i factors_i / scale (factors may be null: 1); returns the scale, NaN if an element is not
  // finite.
  float (*quantize)(const A* x, const float* factors, int64_t count, int8_t* codes);
  // y_i = sums_i (scale scales_i) + bias_i; scales may be null (1), bias too (0).
  void (*scale_sums)(const int32_t* sums, float scale, const float* scales, const A* bias, int64_t count,
                     A* y);
  void (*scale_sums_to_float)(const int32_t* sums, float scale, const float* scales, const A* bias,
                              int64_t count, float* y);
  // to_i = c(code_i) scales_(i / kNf4Block).
  void (*dequantize_nf4)(const uint8_t* codes, const float* scales, int64_t count, A* to);
  // to_i = code_i scale.
  void (*dequantize_int8)(const int8_t* codes, float scale, int64_t count, A* to);
};

// codes_i = c_i / scale in -limit ... limit, c_i = x_i + feedback_i, for at most kGradientBlock values;
// returns the scale. new_feedback (may be feedback, or null) becomes c_i - scale codes_i, rounded to bf16;
// with a scale of 0 it is c_i, with a NaN scale it is 0.
using QuantizeWithFeedback = float (*)(const float* x, const bf16* feedback, int64_t count, int limit,
                                       int8_t* codes, bf16* new_feedback);

struct QuantizedKernels {
  QuantizedRowKernels<bf16> bf16_rows;
  QuantizedRowKernels<float> f32_rows;
  QuantizeWithFeedback quantize_with_feedback;

  template <typename A>
  const QuantizedRowKernels<A>& rows() const {
    if constexpr (std::is_same_v<A, bf16>) {
      return bf16_rows;
    } else {
      return f32_rows;
    }
  }
};

std::vector<Implementation<QuantizedKernels>> quantized_rows_ref();
std::vector<Implementation<QuantizedKernels>> quantized_rows_hwy();
const DispatchTable<QuantizedKernels>& quantized_rows_table();

// c_mn = a_mk b_kn exactly, on the calling thread; row-major, all with these strides. With b_is_transposed, b
// is stored [n, k]. All codes are -127 ... 127.
struct Int8Product {
  int64_t m, n, k;
  const int8_t* a;
  int64_t a_stride;
  const int8_t* b;
  int64_t b_stride;
  bool b_is_transposed;
  int32_t* c;
  int64_t c_stride;
};
struct Int8Kernels {
  int64_t rows, columns;  // the largest m and n
  int64_t scratch_bytes;
  int64_t library_bytes;  // allocated by a library besides, per thread
  // Whether a is in tiles instead (int8_tiles.h), c has room for multiples of 32 rows and columns, and c and
  // scratch are aligned to 64 bytes.
  bool uses_tiles;
  void (*multiply)(const Int8Product& product, std::byte* scratch);

  int64_t sums_bytes() const { return rows * columns * static_cast<int64_t>(sizeof(int32_t)); }
};

extern const Int8Kernels kInt8Amx;
const DispatchTable<Int8Kernels>& int8_product_table();

}  // namespace tessera
