// The matrix products of a linear layer, y = x W^T + b, forward and backward.
//
//   forward           y_tn   = sum_k x_tk w_nk + b_n
//   backward, input   dx_tk  = sum_n dy_tn w_nk           (or +=)
//   backward, weight  dw_nk  = sum_t dy_tn x_tk            (or +=)
//   backward, bias    db_n   = sum_t dy_tn                (or +=)
//
// Types: x, w, b, dy have one dtype A, BF16 or F32; y and dx are A or F32; dw and db are F32. Products and
// sums are float32 (never bf16 or tf32 for F32 input), and every output is rounded to its type once. Shapes:
// x_TK [T, K], w_NK [N, K], b_N [N] or empty, y_TN [T, N], row-major without gaps; T >= 0, N, K >= 1.
// Pointers need only their element's alignment. Outputs do not overlap inputs or scratch.
//
// The shapes fix the order of summation: results do not depend on the number of threads.
// Error, with eps = 2^-24 and u = 2^-8 if the output is BF16, otherwise 0 (Higham, Accuracy and Stability of
// Numerical Algorithms, 3.1):
//   |y - exact| <= (K + 2) eps (sum_k |x_tk w_nk| + |b_n|) + u |exact|, and likewise for the others with N
//   or T terms and the previous value of the output as one more term.
// Results are exact if all partial sums are integers below 2^24 (and the output is representable).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "kernels/gemm/linear_weight.h"
#include "kernels/update.h"
#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

// The largest products with a weight that will be requested.
struct GemmLimits {
  int64_t max_rows;    // T
  LinearShape weight;  // with packed_rows: both forms exist
  DType dtype;         // A
  int64_t num_threads;
};

// Bytes of scratch (64-byte aligned) sufficient for every call within `limits`, including backward calls if
// `training`.
int64_t gemm_scratch_bytes(const GemmLimits& limits, bool training = true);

// Bytes of each packed form (64-byte aligned) of a weight [N, K]; 0: the chosen implementation has no use for
// them.
int64_t packed_weight_bytes(int64_t N, int64_t K, DType dtype);
// Bytes of each packed form on a processor with AMX, whether or not this one has it.
int64_t packed_weight_bytes_of_amx(int64_t N, int64_t K, DType dtype);
// Packs these rows of w_NK into the forms that are not null. Ranges that meet at multiples of kPackedRows
// share no cache line of a form.
void pack_linear_weight(ConstTensorView w_NK, const PackedForms& to, RowRange rows, ThreadPool& pool);

void gemm_forward(ConstTensorView x_TK, const LinearWeight& weight, ConstTensorView bias_N, TensorView y_TN,
                  std::span<std::byte> scratch, ThreadPool& pool);
void gemm_backward_input(ConstTensorView dy_TN, const LinearWeight& weight, TensorView dx_TK, Update update,
                         std::span<std::byte> scratch, ThreadPool& pool);
// The sum of squares of dw, if requested, is within 2^-40 of the exact one; not finite if an element is not.
void gemm_backward_weight(ConstTensorView dy_TN, ConstTensorView x_TK, TensorView dw_NK, WeightUpdate update,
                          std::span<std::byte> scratch, ThreadPool& pool);
void gemm_backward_bias(ConstTensorView dy_TN, TensorView db_N, Update update, ThreadPool& pool);

// Names the products the chosen implementation leaves to another one that was measured to be faster; "" if
// there are none.
std::string_view gemm_left_to_others();

}  // namespace tessera
