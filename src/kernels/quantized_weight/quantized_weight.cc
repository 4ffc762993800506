#include "kernels/quantized_weight/quantized_weight.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/activation_type.h"
#include "kernels/gemm/gemm.h"
#include "kernels/quantized_weight/int8_tiles.h"
#include "kernels/quantized_weight/quantized_weight_impl.h"
#include "tensor/arena.h"

namespace tessera {
namespace {

int8_t* int8_codes(std::byte* codes) { return reinterpret_cast<int8_t*>(codes); }
const int8_t* int8_codes(const std::byte* codes) { return reinterpret_cast<const int8_t*>(codes); }

// ---- 8 bits ----

// Rows of the other operand that are quantized at a time.
constexpr int64_t kTokens = 2048;
constexpr int64_t kRowsPerTask = 8;

struct Int8Scratch {
  int8_t* codes;         // [min(T, kTokens), depth], or in tiles
  float* scales;         // of its rows
  std::byte* of_thread;  // by thread: sums of a part, and scratch of the product

  static int64_t bytes_per_thread() {
    const Int8Kernels& product = int8_product_table().chosen();
    return product.sums_bytes() + product.scratch_bytes;
  }
  // The calling thread's part; a row of codes fits, too (see the check of depths).
  std::byte* own() const { return of_thread + ThreadPool::thread_index() * bytes_per_thread(); }
};

Int8Scratch take_int8_scratch(Arena& arena, int64_t max_rows, int64_t depth, int64_t num_threads) {
  const int64_t rows = std::min(max_rows, kTokens);
  Int8Scratch scratch;
  scratch.codes = reinterpret_cast<int8_t*>(arena.allocate_bytes(int8_tiled_bytes(rows, depth)));
  scratch.scales = reinterpret_cast<float*>(arena.allocate_bytes(rows * static_cast<int64_t>(sizeof(float))));
  scratch.of_thread = arena.allocate_bytes(num_threads * Int8Scratch::bytes_per_thread());
  return scratch;
}

// One of the two products: out = a b, the rows of a quantized.
struct Int8Call {
  const int8_t* b;
  int64_t b_stride;
  bool b_is_transposed;
  const float* factors;  // of the columns of a, before it is quantized; may be null
  const float* scales;   // of the columns of the result; may be null
};

template <typename A>
void quantize_operand(const A* a, int64_t rows, int64_t depth, const float* factors,
                      const Int8Scratch& scratch, ThreadPool& pool) {
  const QuantizedRowKernels<A>& kernels = quantized_rows_table().chosen().template rows<A>();
  const bool uses_tiles = int8_product_table().chosen().uses_tiles;
  pool.parallel_blocks(rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      int8_t* const codes = uses_tiles ? int8_codes(scratch.own()) : scratch.codes + t * depth;
      scratch.scales[t] = kernels.quantize(a + t * depth, factors, depth, codes);
      if (!uses_tiles) continue;
      std::fill(codes + depth, codes + round_up(depth, kInt8StepDepth), int8_t{0});
      place_int8_row(codes, depth, t, scratch.codes);
    }
  });
}

// The rows of a part of a product: as many as the kernel takes at most, unless threads would go without.
int64_t rows_per_part(const Int8Kernels& product, int64_t rows, int64_t column_parts, int64_t num_threads) {
  int64_t part = product.rows;
  while (part > 2 * kInt8PanelRows && divide_up(rows, part) * column_parts < num_threads) part /= 2;
  return part;
}

template <typename A, typename Y>
void multiply_rows(const A* a, int64_t rows, int64_t depth, int64_t columns, const Int8Call& call,
                   const A* bias, Y* out, const Int8Scratch& scratch, ThreadPool& pool) {
  const QuantizedRowKernels<A>& kernels = quantized_rows_table().chosen().template rows<A>();
  quantize_operand(a, rows, depth, call.factors, scratch, pool);
  const Int8Kernels& product = int8_product_table().chosen();
  const int64_t column_parts = divide_up(columns, product.columns);
  const int64_t part_rows = rows_per_part(product, rows, column_parts, pool.num_threads());
  const int64_t row_parts = divide_up(rows, part_rows);
  pool.parallel_for(row_parts * column_parts, [&](int64_t task) {
    const int64_t row = task % row_parts * part_rows, column = task / row_parts * product.columns;
    const int64_t m = std::min(part_rows, rows - row), n = std::min(product.columns, columns - column);
    const int64_t stride = product.columns;
    auto* const sums = reinterpret_cast<int32_t*>(scratch.own());
    const int8_t* const b = call.b + column * (call.b_is_transposed ? call.b_stride : 1);
    const int64_t first = product.uses_tiles ? int8_tiled_offset(row, depth) : row * depth;
    product.multiply(
        {m, n, depth, scratch.codes + first, depth, b, call.b_stride, call.b_is_transposed, sums, stride},
        scratch.own() + product.sums_bytes());
    const float* const scales = call.scales == nullptr ? nullptr : call.scales + column;
    const A* const bias_part = bias == nullptr ? nullptr : bias + column;
    for (int64_t t = row; t < row + m; ++t) {
      const int32_t* const of_row = sums + (t - row) * stride;
      Y* const to = out + t * columns + column;
      if constexpr (std::is_same_v<A, Y>) {
        kernels.scale_sums(of_row, scratch.scales[t], scales, bias_part, n, to);
      } else {
        kernels.scale_sums_to_float(of_row, scratch.scales[t], scales, bias_part, n, to);
      }
    }
  });
}

void multiply_int8(ConstTensorView a, const Int8Call& call, ConstTensorView bias, TensorView out,
                   std::span<std::byte> scratch, ThreadPool& pool) {
  const int64_t T = a.dim(0), depth = a.dim(1), columns = out.dim(1);
  TESSERA_CHECK(depth <= INT32_MAX / (127 * 127), "sums of {} products", depth);
  Arena arena(scratch);
  const Int8Scratch of_call = take_int8_scratch(arena, T, depth, pool.num_threads());
  with_activation_type(a.dtype(), [&]<typename A>(A) {
    const A* const bias_data = bias.empty() ? nullptr : bias.as<A>();
    for (int64_t begin = 0; begin < T; begin += kTokens) {
      const int64_t rows = std::min(kTokens, T - begin);
      const A* const from = a.as<A>() + begin * depth;
      with_activation_type(out.dtype(), [&]<typename Y>(Y) {
        if constexpr (std::is_same_v<Y, A> || std::is_same_v<Y, float>) {
          multiply_rows(from, rows, depth, columns, call, bias_data, out.as<Y>() + begin * columns, of_call,
                        pool);
        }
      });
    }
  });
}

// ---- 4 bits ----

// Rows or columns of the weight that are in the dtype of the activations at a time: 7 MiB of BF16 at a depth
// of 14,336; a multiple of kNf4Block. Turning them costs 1 / T of the product, copying the result 1 / depth.
constexpr int64_t kPanel = 256;

// A panel of the weight, the panel's part of the result, and what gemm.h needs.
struct PanelScratch {
  TensorView panel, result;
  std::span<std::byte> product;
};

PanelScratch take_panel_scratch(Arena& arena, LinearShape panel, bool is_forward, int64_t rows, DType dtype,
                                DType result_dtype, int64_t num_threads) {
  const auto take = [&](DType type, int64_t of_rows, int64_t columns) {
    return TensorView(arena.allocate_bytes(of_rows * columns * dtype_bytes(type)), type, {of_rows, columns});
  };
  PanelScratch scratch;
  scratch.panel = take(dtype, panel.N, panel.K);
  scratch.result = take(result_dtype, rows, is_forward ? panel.N : panel.K);
  const int64_t product_bytes =
      gemm_scratch_bytes({rows, panel, dtype, num_threads}, /*training=*/!is_forward);
  scratch.product = {arena.allocate_bytes(product_bytes), static_cast<size_t>(product_bytes)};
  return scratch;
}

// Elements [column, column + count) of a row; `column` is even.
template <typename A>
void dequantize_stretch(const ConstQuantizedMatrix& weight, int64_t row, int64_t column, int64_t count,
                        const QuantizedRowKernels<A>& kernels, A* to) {
  constexpr int64_t kMost = 256 * kNf4Block;
  std::array<float, kMost / kNf4Block + 2> scales;
  for (int64_t done = 0; done < count; done += kMost) {
    const int64_t k = column + done, now = std::min(kMost, count - done);
    const int64_t before = nf4_scales(weight, row, k, now, scales.data());
    const auto* codes = reinterpret_cast<const uint8_t*>(weight.codes(row)) + k / 2;
    // The kernel begins with a block and a byte.
    const int64_t first = before == 0 ? 0 : std::min(kNf4Block - before, now);
    if (first % 2 == 0) {
      if (first > 0) kernels.dequantize_nf4(codes, scales.data(), first, to + done);
      if (first == now) continue;
      kernels.dequantize_nf4(codes + first / 2, scales.data() + (first > 0 ? 1 : 0), now - first,
                             to + done + first);
      continue;
    }
    for (int64_t i = 0; i < now; ++i) {
      const int code = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
      to[done + i] = from_float<A>(kNf4Values[code] * scales[static_cast<size_t>((before + i) / kNf4Block)]);
    }
  }
}

// Rows [row, row + panel.dim(0)), columns [column, column + panel.dim(1)) of the weight.
void fill_panel(const ConstQuantizedMatrix& weight, int64_t row, int64_t column, TensorView panel,
                ThreadPool& pool) {
  const int64_t columns = panel.dim(1);
  with_activation_type(panel.dtype(), [&]<typename A>(A) {
    const auto& kernels = quantized_rows_table().chosen().template rows<A>();
    pool.parallel_blocks(panel.dim(0), kRowsPerTask, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) {
        dequantize_stretch(weight, row + n, column, columns, kernels, panel.as<A>() + n * columns);
      }
    });
  });
}

void copy_columns(ConstTensorView from, TensorView to, int64_t column, ThreadPool& pool) {
  const int64_t element = dtype_bytes(to.dtype()), row_bytes = from.dim(1) * element;
  pool.parallel_blocks(from.dim(0), kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      std::memcpy(to.bytes() + (t * to.dim(1) + column) * element, from.bytes() + t * row_bytes,
                  static_cast<size_t>(row_bytes));
    }
  });
}

// Calls body(scratch of a panel, its first row or column) for every panel of the result's columns.
template <typename Body>
void for_each_panel(TensorView out, int64_t depth, bool is_forward, DType dtype, std::span<std::byte> scratch,
                    ThreadPool& pool, const Body& body) {
  const int64_t T = out.dim(0), columns = out.dim(1);
  for (int64_t column = 0; column < columns; column += kPanel) {
    const int64_t width = std::min(kPanel, columns - column);
    Arena arena(scratch);
    const LinearShape shape = is_forward ? LinearShape{width, depth} : LinearShape{depth, width};
    PanelScratch of_panel =
        take_panel_scratch(arena, shape, is_forward, T, dtype, out.dtype(), pool.num_threads());
    if (width == columns) of_panel.result = out;
    body(of_panel, column, width);
    if (width < columns) copy_columns(of_panel.result, out, column, pool);
  }
}

bool is_matrix(ConstTensorView view, int64_t columns, DType dtype) {
  return view.shape().rank() == 2 && view.dim(1) == columns && view.dtype() == dtype;
}

void check_call(ConstTensorView from, int64_t inputs, const ConstQuantizedMatrix& weight, ConstTensorView to,
                int64_t outputs) {
  TESSERA_CHECK(weight.kind != Quantization::kNone && weight.data != nullptr && weight.N >= 1 &&
                    weight.K >= 1 && is_matrix(from, inputs, from.dtype()) && from.dim(0) == to.dim(0) &&
                    (is_matrix(to, outputs, from.dtype()) || is_matrix(to, outputs, DType::kF32)),
                "{} times {} x {} to {}", from.shape().to_string(), weight.N, weight.K,
                to.shape().to_string());
}

}  // namespace

const DispatchTable<QuantizedKernels>& quantized_rows_table() {
  static const DispatchTable<QuantizedKernels> table("quantized rows",
                                                     concat(quantized_rows_hwy(), quantized_rows_ref()));
  return table;
}

MatrixQuantizer::MatrixQuantizer(const QuantizedMatrix<std::byte>& to, int64_t first_row)
    : to_(to), next_row_(first_row) {
  if (to.is_4_bit()) blocks_.emplace(to, first_row);
}

void MatrixQuantizer::add(ConstTensorView w_RK, ThreadPool& pool) {
  const int64_t rows = w_RK.dim(0), first_row = next_row_;
  TESSERA_CHECK(is_matrix(w_RK, to_.K, DType::kF32) && first_row + rows <= to_.N, "rows {} to {} of {} x {}",
                first_row, first_row + rows, to_.N, to_.K);
  next_row_ += rows;
  if (blocks_) {
    blocks_->add({w_RK.as<float>(), static_cast<size_t>(w_RK.num_elements())}, pool);
    return;
  }
  const auto& kernels = quantized_rows_table().chosen().rows<float>();
  pool.parallel_blocks(rows, kRowsPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t row = first_row + r;
      reinterpret_cast<float*>(to_.scales())[row] =
          kernels.quantize(w_RK.as<float>() + r * to_.K, nullptr, to_.K, int8_codes(to_.codes(row)));
    }
  });
}

int64_t int8_library_bytes() { return int8_product_table().chosen().library_bytes; }

int64_t quantized_scratch_bytes(const ConstQuantizedMatrix& weight, int64_t max_rows, DType dtype,
                                int64_t num_threads, bool training) {
  const auto bytes = [&](bool is_forward) {
    Arena arena = Arena::measuring();
    const int64_t depth = is_forward ? weight.K : weight.N;
    if (weight.kind == Quantization::kInt8) {
      take_int8_scratch(arena, max_rows, depth, num_threads);
    } else {
      const int64_t width = std::min(kPanel, is_forward ? weight.N : weight.K);
      const LinearShape shape = is_forward ? LinearShape{width, depth} : LinearShape{depth, width};
      take_panel_scratch(arena, shape, is_forward, max_rows, dtype, DType::kF32, num_threads);
    }
    return arena.high_water_bytes();
  };
  return training ? std::max(bytes(true), bytes(false)) : bytes(true);
}

void quantized_forward(ConstTensorView x_TK, const ConstQuantizedMatrix& weight, ConstTensorView bias_N,
                       TensorView y_TN, std::span<std::byte> scratch, ThreadPool& pool) {
  check_call(x_TK, weight.K, weight, y_TN, weight.N);
  TESSERA_CHECK(bias_N.empty() || (bias_N.num_elements() == weight.N && bias_N.dtype() == x_TK.dtype()),
                "bias {}", bias_N.shape().to_string());
  if (x_TK.dim(0) == 0) return;
  if (weight.kind == Quantization::kInt8) {
    const auto* const scales = reinterpret_cast<const float*>(weight.scales());
    return multiply_int8(x_TK, {int8_codes(weight.codes(0)), weight.K, true, nullptr, scales}, bias_N, y_TN,
                         scratch, pool);
  }
  for_each_panel(y_TN, weight.K, /*is_forward=*/true, x_TK.dtype(), scratch, pool,
                 [&](const PanelScratch& of_panel, int64_t row, int64_t width) {
                   fill_panel(weight, row, 0, of_panel.panel, pool);
                   const ConstTensorView bias = bias_N.empty() ? bias_N : bias_N.rows(row, row + width);
                   gemm_forward(x_TK, ConstTensorView(of_panel.panel), bias, of_panel.result,
                                of_panel.product, pool);
                 });
}

void quantized_backward_input(ConstTensorView dy_TN, const ConstQuantizedMatrix& weight, TensorView dx_TK,
                              std::span<std::byte> scratch, ThreadPool& pool) {
  check_call(dy_TN, weight.N, weight, dx_TK, weight.K);
  if (dy_TN.dim(0) == 0) return;
  if (weight.kind == Quantization::kInt8) {
    const auto* const factors = reinterpret_cast<const float*>(weight.scales());
    return multiply_int8(dy_TN, {int8_codes(weight.codes(0)), weight.K, false, factors, nullptr}, {}, dx_TK,
                         scratch, pool);
  }
  for_each_panel(dx_TK, weight.N, /*is_forward=*/false, dy_TN.dtype(), scratch, pool,
                 [&](const PanelScratch& of_panel, int64_t column, int64_t /*width*/) {
                   fill_panel(weight, 0, column, of_panel.panel, pool);
                   gemm_backward_input(dy_TN, ConstTensorView(of_panel.panel), of_panel.result,
                                       Update::kOverwrite, of_panel.product, pool);
                 });
}

}  // namespace tessera
