// For processors whose oneDNN has no bf16 product (before AVX-512 BF16): tiles of bf16 are widened to
// float32, multiplied by oneDNN's sgemm and rounded once. Float32 takes the same path as on newer processors.
#include <algorithm>

#include "base/divide_up.h"
#include "kernels/gemm/gemm_impl.h"
#include "kernels/gemm/onednn_products.h"

namespace tessera {
namespace {

// Float32 tiles of a and b (512 KiB each) and c (256 KiB): together about one core's L2. Widening costs 1 /
// kTile of the multiplications.
constexpr int64_t kTile = 256;
constexpr int64_t kDepth = 512;
constexpr int64_t kThreadScratchBytes =
    (2 * kTile * kDepth + kTile * kTile) * static_cast<int64_t>(sizeof(float));

int64_t scratch_bytes(GemmProduct product, const GemmLimits& limits) {
  return limits.dtype == DType::kF32 ? kGemmOneDnn.scratch_bytes(product, limits)
                                     : limits.num_threads * kThreadScratchBytes;
}

// A row-major matrix of bf16, used as it is stored or transposed.
struct Operand {
  const bf16* data;
  int64_t stride;  // between stored rows
  bool transposed;

  // Widens the part [row, row + rows) x [column, column + columns) of the operand (after transposition) into
  // `tile`, in the stored orientation without gaps. Returns the stride of the tile.
  int64_t widen(int64_t row, int64_t rows, int64_t column, int64_t columns, float* tile) const {
    if (transposed) {
      std::swap(row, column);
      std::swap(rows, columns);
    }
    for (int64_t i = 0; i < rows; ++i) {
      const bf16* from = data + (row + i) * stride + column;
      for (int64_t j = 0; j < columns; ++j) tile[i * columns + j] = to_float(from[j]);
    }
    return columns;
  }
};

// c_mn = or += a_mk b_kn + bias_n.
struct Product {
  int64_t m, n, k;
  Operand a, b;
  const bf16* bias;  // may be null
  TensorView c;
  bool add;
};

template <typename C>
void run_tile(const Product& p, int64_t row, int64_t column, float* scratch) {
  float* a_tile = scratch;
  float* b_tile = a_tile + kTile * kDepth;
  float* c_tile = b_tile + kTile * kDepth;
  const int64_t rows = std::min(kTile, p.m - row), columns = std::min(kTile, p.n - column);
  C* c = p.c.as<C>() + row * p.n + column;
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      const float start = p.bias == nullptr ? 0.0f : to_float(p.bias[column + j]);
      c_tile[i * columns + j] = p.add ? to_float(c[i * p.n + j]) : start;
    }
  }
  for (int64_t begin = 0; begin < p.k; begin += kDepth) {
    const int64_t depth = std::min(kDepth, p.k - begin);
    const int64_t a_stride = p.a.widen(row, rows, begin, depth, a_tile);
    const int64_t b_stride = p.b.widen(begin, depth, column, columns, b_tile);
    onednn_sgemm(p.a.transposed, p.b.transposed, rows, columns, depth, a_tile, a_stride, b_tile, b_stride,
                 1.0f, c_tile, columns);
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) c[i * p.n + j] = from_float<C>(c_tile[i * columns + j]);
  }
}

void run_product(const Product& p, std::span<std::byte> scratch, ThreadPool& pool) {
  const int64_t tile_rows = divide_up(p.m, kTile), tile_columns = divide_up(p.n, kTile);
  pool.parallel_for(tile_rows * tile_columns, [&](int64_t i) {
    const int64_t offset = ThreadPool::thread_index() * kThreadScratchBytes;
    TESSERA_CHECK(offset + kThreadScratchBytes <= static_cast<int64_t>(scratch.size()),
                  "thread {} of another pool", ThreadPool::thread_index());
    auto* tiles = reinterpret_cast<float*>(scratch.data() + offset);
    const int64_t row = i / tile_columns * kTile, column = i % tile_columns * kTile;
    if (p.c.dtype() == DType::kBF16) {
      run_tile<bf16>(p, row, column, tiles);
    } else {
      run_tile<float>(p, row, column, tiles);
    }
  });
}

void forward(ConstTensorView x_TK, const LinearWeight& weight, ConstTensorView bias_N, TensorView y_TN,
             std::span<std::byte> scratch, ThreadPool& pool) {
  if (x_TK.dtype() == DType::kF32) return kGemmOneDnn.forward(x_TK, weight, bias_N, y_TN, scratch, pool);
  const ConstTensorView w_NK = weight.w_NK;
  const int64_t T = x_TK.dim(0), K = x_TK.dim(1), N = w_NK.dim(0);
  run_product({.m = T,
               .n = N,
               .k = K,
               .a = {x_TK.as<bf16>(), K, false},
               .b = {w_NK.as<bf16>(), K, true},
               .bias = bias_N.empty() ? nullptr : bias_N.as<bf16>(),
               .c = y_TN,
               .add = false},
              scratch, pool);
}

void backward_input(ConstTensorView dy_TN, const LinearWeight& weight, TensorView dx_TK, Update update,
                    std::span<std::byte> scratch, ThreadPool& pool) {
  if (dy_TN.dtype() == DType::kF32) {
    return kGemmOneDnn.backward_input(dy_TN, weight, dx_TK, update, scratch, pool);
  }
  const ConstTensorView w_NK = weight.w_NK;
  const int64_t T = dy_TN.dim(0), N = dy_TN.dim(1), K = w_NK.dim(1);
  run_product({.m = T,
               .n = K,
               .k = N,
               .a = {dy_TN.as<bf16>(), N, false},
               .b = {w_NK.as<bf16>(), K, false},
               .bias = nullptr,
               .c = dx_TK,
               .add = update == Update::kAdd},
              scratch, pool);
}

void backward_weight(ConstTensorView dy_TN, ConstTensorView x_TK, TensorView dw_NK, WeightUpdate update,
                     std::span<std::byte> scratch, ThreadPool& pool) {
  if (dy_TN.dtype() == DType::kF32)
    return kGemmOneDnn.backward_weight(dy_TN, x_TK, dw_NK, update, scratch, pool);
  const int64_t T = dy_TN.dim(0), N = dy_TN.dim(1), K = x_TK.dim(1);
  run_product({.m = N,
               .n = K,
               .k = T,
               .a = {dy_TN.as<bf16>(), N, true},
               .b = {x_TK.as<bf16>(), K, false},
               .bias = nullptr,
               .c = dw_NK,
               .add = update.mode == Update::kAdd},
              scratch, pool);
}

}  // namespace

const GemmKernels kGemmOneDnnTiles = {scratch_bytes, forward, backward_input, backward_weight};

}  // namespace tessera
