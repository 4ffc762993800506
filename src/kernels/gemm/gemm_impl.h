// The implementations behind gemm.h, for its dispatch, tests and benchmarks.
#pragma once

#include <algorithm>

#include "kernels/dispatch.h"
#include "kernels/gemm/gemm.h"

namespace tessera {

enum class GemmProduct { kForward, kBackwardInput, kBackwardWeight };

// One implementation of the three products. Arguments are checked by gemm.cc: shapes agree, T, N and K are at
// least 1, scratch holds scratch_bytes() for these limits.
struct GemmKernels {
  // Never decreases as rows increase.
  int64_t (*scratch_bytes)(GemmProduct product, const GemmLimits& limits);
  void (*forward)(ConstTensorView x_TK, const LinearWeight& weight, ConstTensorView bias_N, TensorView y_TN,
                  std::span<std::byte> scratch, ThreadPool& pool);
  void (*backward_input)(ConstTensorView dy_TN, const LinearWeight& weight, TensorView dx_TK, Update update,
                         std::span<std::byte> scratch, ThreadPool& pool);
  void (*backward_weight)(ConstTensorView dy_TN, ConstTensorView x_TK, TensorView dw_NK, WeightUpdate update,
                          std::span<std::byte> scratch, ThreadPool& pool);
  // The table name of the implementation that runs float32 products if this one has none of its own.
  std::string_view float32_name = {};
  // packed_weight_bytes() and pack_linear_weight(); null: products take only row-major weights.
  int64_t (*packed_bytes)(int64_t N, int64_t K, DType dtype) = nullptr;
  void (*pack)(ConstTensorView w_NK, const PackedForms& to, RowRange rows, ThreadPool& pool) = nullptr;
  // Whether BF16 backward_weight sums the squares if requested; otherwise gemm.cc reads dw again.
  bool sums_squares = false;
  // Names the products it leaves to a faster implementation, as measured; null or empty: none.
  std::string_view (*left_to_others)() = nullptr;
};

// The shape parameters of a product that uses this packed form; null: the form does not exist.
inline LinearShape shape_of(const LinearWeight& weight, const std::byte* form) {
  return {weight.w_NK.dim(0), weight.w_NK.dim(1), form == nullptr ? 0 : weight.packed_rows, weight.first_row};
}

// Maximum over all three products.
inline int64_t max_scratch_bytes(const GemmKernels& kernels, const GemmLimits& limits) {
  return std::max({kernels.scratch_bytes(GemmProduct::kForward, limits),
                   kernels.scratch_bytes(GemmProduct::kBackwardInput, limits),
                   kernels.scratch_bytes(GemmProduct::kBackwardWeight, limits)});
}

extern const GemmKernels kGemmAmx;          // bf16 on tiles; float32 as kGemmOneDnn
extern const GemmKernels kGemmOneDnn;       // bf16 needs AVX-512 BF16
extern const GemmKernels kGemmOneDnnTiles;  // bf16 through float32
extern const GemmKernels kGemmRef;

const DispatchTable<GemmKernels>& gemm_table();

}  // namespace tessera
