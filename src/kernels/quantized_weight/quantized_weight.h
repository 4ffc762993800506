// The products of a linear layer whose frozen weight is kept in fewer bits (quantized_form.h):
//
//   forward          y_tn  = sum_k x_tk w_nk + b_n
//   backward, input  dx_tk = sum_n dy_tn w_nk
//
// kInt8: the rows of the other operand are quantized as well, on the fly, and codes multiplied as integers:
//
//   x_tk ~ u_t p_tk          y_tn  = (sum_k p_tk q_nk) (u_t s_n) + b_n
//   dy_tn s_n ~ v_t r_tn     dx_tk = (sum_n r_tn q_nk) v_t
//
//   s_n lies along the second sum, so it is part of r.
//   u_t = max_k |x_tk| / 127 and p_tk = x_tk / u_t rounded to nearest, ties to even; likewise v, r. The
//   sums are exact (checked: 127^2 K and 127^2 N below 2^31), everything else is float32 as written, so that
//   all implementations and any number of threads give the same bits. A row whose largest element is below
//   2^-100 counts as zero; one with an element that is not finite gives NaN.
//
// kNf4, kNf4Double: weights are converted to the dtype A of x, some rows or columns at a time, and
// multiplied by gemm.h, whose types, error and order of summation apply.
//
// Types: x, b, dy have one dtype A, BF16 or F32; y and dx are A or F32. Shapes as in gemm.h; T >= 0.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "kernels/dispatch.h"
#include "kernels/gemm/linear_weight.h"
#include "kernels/quantized_weight/nf4_blocks.h"
#include "kernels/quantized_weight/quantized_form.h"
#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

// Quantizes a matrix, finite, whose rows arrive in order: the one that begins at `first_row` of `to`. Any
// pieces and any number of threads give the same bits.
class MatrixQuantizer {
 public:
  MatrixQuantizer(const QuantizedMatrix<std::byte>& to, int64_t first_row);

  // The next rows, F32.
  void add(ConstTensorView w_RK, ThreadPool& pool);

 private:
  QuantizedMatrix<std::byte> to_;
  int64_t next_row_;
  std::optional<Nf4Quantizer> blocks_;
};

// Bytes that a library multiplying int8 codes allocates per thread, besides the scratch.
int64_t int8_library_bytes();

// Bytes of scratch (64-byte aligned) sufficient for products with max_rows tokens or fewer.
int64_t quantized_scratch_bytes(const ConstQuantizedMatrix& weight, int64_t max_rows, DType dtype,
                                int64_t num_threads, bool training);

void quantized_forward(ConstTensorView x_TK, const ConstQuantizedMatrix& weight, ConstTensorView bias_N,
                       TensorView y_TN, std::span<std::byte> scratch, ThreadPool& pool);
void quantized_backward_input(ConstTensorView dy_TN, const ConstQuantizedMatrix& weight, TensorView dx_TK,
                              std::span<std::byte> scratch, ThreadPool& pool);

}  // namespace tessera
