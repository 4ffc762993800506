// The products as many sequential oneDNN matmuls, one per slice of rows. Only whole rows are cut off, because
// oneDNN 2.6's fast implementation (brgemm) requires matrices without gaps.
#include <algorithm>
#include <cstring>

#include "base/memory.h"
#include "kernels/gemm/gemm_impl.h"
#include "kernels/gemm/narrow_products.h"
#include "kernels/gemm/onednn_products.h"
#include "kernels/gemm/row_slices.h"

namespace tessera {
namespace {

// Tokens per step of backward_weight: 512 is fastest for 64 to 256 rows of dw and any K (dw is read and
// written once per step, and x_block [512, 512] bf16 stays in L2).
constexpr int64_t kTokenBlock = 512;
constexpr int64_t kMaxSliceHeight = 256;
// Weight rows per task for a single token: 4 MiB of weights at K = 4096.
constexpr int64_t kGenerationSlice = 512;

// Per thread: the columns of dy that belong to its slice of dw, packed, and oneDNN's scratchpad.
constexpr int64_t kPackedBytes = kTokenBlock * kMaxSliceHeight * static_cast<int64_t>(sizeof(float));
constexpr int64_t kThreadScratchBytes = kPackedBytes + kOneDnnScratchpadBytes;

int64_t scratch_bytes(GemmProduct /*product*/, const GemmLimits& limits) {
  return limits.num_threads * kThreadScratchBytes;
}

std::byte* packed_of_thread(std::span<std::byte> scratch) {
  const int64_t offset = ThreadPool::thread_index() * kThreadScratchBytes;
  TESSERA_CHECK(offset + kThreadScratchBytes <= static_cast<int64_t>(scratch.size()),
                "thread {} of another pool", ThreadPool::thread_index());
  return scratch.data() + offset;
}

std::byte* scratchpad_of_thread(std::span<std::byte> scratch) {
  return packed_of_thread(scratch) + kPackedBytes;
}

// One token: y is a single row, so slices of w's rows give gapless slices of y.
void forward_one_token(ConstTensorView x_TK, ConstTensorView w_NK, ConstTensorView bias_N, TensorView y_TN,
                       std::span<std::byte> scratch, ThreadPool& pool) {
  const int64_t K = x_TK.dim(1), N = w_NK.dim(0);
  const RowSlices slices(N, kGenerationSlice);
  pool.parallel_for(slices.count(), [&](int64_t i) {
    const auto [begin, end] = slices[i];
    run_onednn({.layout = Layout::kForward,
                .dtype = x_TK.dtype(),
                .result_dtype = y_TN.dtype(),
                .has_bias = !bias_N.empty(),
                .add = false,
                .m = 1,
                .n = end - begin,
                .k = K},
               x_TK.bytes(), w_NK.rows(begin, end).bytes(),
               bias_N.empty() ? nullptr : bias_N.bytes() + begin * dtype_bytes(bias_N.dtype()),
               y_TN.bytes() + begin * dtype_bytes(y_TN.dtype()), scratchpad_of_thread(scratch));
  });
}

void forward(ConstTensorView x_TK, const LinearWeight& weight, ConstTensorView bias_N, TensorView y_TN,
             std::span<std::byte> scratch, ThreadPool& pool) {
  const ConstTensorView w_NK = weight.w_NK;
  const int64_t T = x_TK.dim(0), K = x_TK.dim(1), N = w_NK.dim(0);
  if (T == 1) return forward_one_token(x_TK, w_NK, bias_N, y_TN, scratch, pool);
  if (N <= kMaxNarrowRows && bias_N.empty()) return narrow_table().chosen().forward(x_TK, w_NK, y_TN, pool);
  const RowSlices slices(T, slice_height(T));
  pool.parallel_for(slices.count(), [&](int64_t i) {
    const auto [begin, end] = slices[i];
    run_onednn({.layout = Layout::kForward,
                .dtype = x_TK.dtype(),
                .result_dtype = y_TN.dtype(),
                .has_bias = !bias_N.empty(),
                .add = false,
                .m = end - begin,
                .n = N,
                .k = K},
               x_TK.rows(begin, end).bytes(), w_NK.bytes(), bias_N.bytes(), y_TN.rows(begin, end).bytes(),
               scratchpad_of_thread(scratch));
  });
}

void backward_input(ConstTensorView dy_TN, const LinearWeight& weight, TensorView dx_TK, Update update,
                    std::span<std::byte> scratch, ThreadPool& pool) {
  const ConstTensorView w_NK = weight.w_NK;
  const int64_t T = dy_TN.dim(0), N = dy_TN.dim(1), K = w_NK.dim(1);
  if (N <= kMaxNarrowRows) return narrow_table().chosen().backward_input(dy_TN, w_NK, dx_TK, update, pool);
  const RowSlices slices(T, slice_height(T));
  pool.parallel_for(slices.count(), [&](int64_t i) {
    const auto [begin, end] = slices[i];
    run_onednn({.layout = Layout::kInput,
                .dtype = dy_TN.dtype(),
                .result_dtype = dx_TK.dtype(),
                .has_bias = false,
                .add = update == Update::kAdd,
                .m = end - begin,
                .n = K,
                .k = N},
               dy_TN.rows(begin, end).bytes(), w_NK.bytes(), nullptr, dx_TK.rows(begin, end).bytes(),
               scratchpad_of_thread(scratch));
  });
}

// A task owns rows [begin, end) of dw and sums the tokens block by block, in order.
void backward_weight(ConstTensorView dy_TN, ConstTensorView x_TK, TensorView dw_NK, WeightUpdate update,
                     std::span<std::byte> scratch, ThreadPool& pool) {
  const int64_t T = dy_TN.dim(0), N = dy_TN.dim(1), K = x_TK.dim(1);
  if (N <= kMaxNarrowRows) {
    return narrow_table().chosen().backward_weight(dy_TN, x_TK, dw_NK, update.mode, pool);
  }
  const RowSlices rows(N, slice_height(N));
  const RowSlices tokens(T, kTokenBlock);
  const int64_t element_bytes = dtype_bytes(dy_TN.dtype());
  pool.parallel_for(rows.count(), [&](int64_t i) {
    const auto [begin, end] = rows[i];
    const int64_t packed_row_bytes = (end - begin) * element_bytes;
    std::byte* packed = packed_of_thread(scratch);
    for (int64_t j = 0; j < tokens.count(); ++j) {
      const auto [first, last] = tokens[j];
      const std::byte* from = dy_TN.bytes() + (first * N + begin) * element_bytes;
      for (int64_t t = 0; t < last - first; ++t) {
        std::memcpy(packed + t * packed_row_bytes, from + t * N * element_bytes,
                    static_cast<size_t>(packed_row_bytes));
      }
      run_onednn({.layout = Layout::kWeight,
                  .dtype = dy_TN.dtype(),
                  .result_dtype = DType::kF32,
                  .has_bias = false,
                  .add = update.mode == Update::kAdd || j > 0,
                  .m = end - begin,
                  .n = K,
                  .k = last - first},
                 packed, x_TK.rows(first, last).bytes(), nullptr, dw_NK.rows(begin, end).bytes(),
                 scratchpad_of_thread(scratch));
    }
  });
}

}  // namespace

const GemmKernels kGemmOneDnn = {scratch_bytes, forward, backward_input, backward_weight};

}  // namespace tessera
