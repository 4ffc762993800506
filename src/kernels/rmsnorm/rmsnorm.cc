#include "kernels/rmsnorm/rmsnorm.h"

#include "base/divide_up.h"
#include "base/memory.h"
#include "kernels/rmsnorm/rmsnorm_impl.h"

namespace tessera {

const DispatchTable<RmsNormKernels>& rmsnorm_table() {
  static const DispatchTable<RmsNormKernels> table("rmsnorm", concat(rmsnorm_hwy(), rmsnorm_ref()));
  return table;
}

namespace {

// Checks activations x_RD and a second tensor of the same shape, a weight as wide as x, and rstd with one
// value per row.
void check_rows(ConstTensorView x_RD, ConstTensorView other_RD, const NormWeight& w_D,
                ConstTensorView rstd_R) {
  TESSERA_CHECK(x_RD.shape().rank() == 2 && other_RD.shape() == x_RD.shape() &&
                    w_D.view.shape() == Shape{x_RD.dim(1)} && rstd_R.num_elements() == x_RD.dim(0),
                "x {}, other {}, weight {}, rstd {}", x_RD.shape().to_string(), other_RD.shape().to_string(),
                w_D.view.shape().to_string(), rstd_R.shape().to_string());
  TESSERA_CHECK(other_RD.dtype() == x_RD.dtype() && w_D.view.dtype() == x_RD.dtype(),
                "x {}, other {}, weight {}", dtype_name(x_RD.dtype()), dtype_name(other_RD.dtype()),
                dtype_name(w_D.view.dtype()));
}

void check_heads(ConstTensorView qkv_TQ, ConstTensorView other_TQ, const AttentionShape& shape,
                 int64_t head_begin, int64_t head_end, const NormWeight& w_E, ConstTensorView rstd) {
  TESSERA_CHECK(
      qkv_TQ.shape() == (Shape{qkv_TQ.dim(0), shape.qkv_width()}) && other_TQ.shape() == qkv_TQ.shape() &&
          w_E.view.shape().rank() == 1 &&
          (w_E.view.dim(0) == shape.head_dim || w_E.view.dim(0) == (head_end - head_begin) * shape.head_dim),
      "qkv {}, other {}, weight {}", qkv_TQ.shape().to_string(), other_TQ.shape().to_string(),
      w_E.view.shape().to_string());
  TESSERA_CHECK(
      0 <= head_begin && head_begin <= head_end &&
          head_end <= shape.num_heads + 2 * shape.num_key_value_heads &&
          rstd.num_elements() == qkv_TQ.dim(0) * ((head_end - head_begin) * shape.head_dim / w_E.view.dim(0)),
      "heads [{}, {}), rstd {}", head_begin, head_end, rstd.shape().to_string());
  TESSERA_CHECK(other_TQ.dtype() == qkv_TQ.dtype() && w_E.view.dtype() == qkv_TQ.dtype(),
                "qkv {}, other {}, weight {}", dtype_name(qkv_TQ.dtype()), dtype_name(other_TQ.dtype()),
                dtype_name(w_E.view.dtype()));
}

int64_t dw_row_bytes(int64_t width) {
  return round_up(width * static_cast<int64_t>(sizeof(float)), kCacheLineBytes);
}

// One float32 row of `width` per block, each on its own cache lines, and one for dw where it is not wanted.
int64_t partial_dw_bytes(int64_t rows, int64_t width) {
  return (divide_up(rows, kRmsNormBackwardBlock) + 1) * dw_row_bytes(width);
}

// dw, or if it is empty that row of the scratch.
TensorView dw_or_scratch(TensorView dw, ConstTensorView w, int64_t rows, std::span<std::byte> scratch) {
  if (!dw.empty()) return dw;
  const int64_t width = w.num_elements();
  return {scratch.data() + partial_dw_bytes(rows, width) - dw_row_bytes(width), DType::kF32, w.shape()};
}

}  // namespace

void rmsnorm(ConstTensorView x_RD, const NormWeight& w_D, float eps, TensorView y_RD, TensorView rstd_R,
             ThreadPool& pool) {
  check_rows(x_RD, y_RD, w_D, rstd_R);
  rmsnorm_table().chosen().forward(x_RD, w_D, eps, y_RD, rstd_R, pool);
}

void add_rmsnorm(TensorView x_TD, ConstTensorView y_TD, const NormWeight& w_D, float eps, TensorView norm_TD,
                 TensorView rstd_T, ThreadPool& pool) {
  check_rows(x_TD, y_TD, w_D, rstd_T);
  check_rows(x_TD, norm_TD, w_D, rstd_T);
  rmsnorm_table().chosen().add_forward(x_TD, y_TD, w_D, eps, norm_TD, rstd_T, pool);
}

int64_t rmsnorm_backward_scratch_bytes(int64_t rows, int64_t width) { return partial_dw_bytes(rows, width); }

void rmsnorm_backward(ConstTensorView dy_RD, ConstTensorView x_RD, const NormWeight& w_D,
                      ConstTensorView rstd_R, TensorView dx_RD, Update dx_update, TensorView dw_D,
                      Update dw_update, std::span<std::byte> scratch, ThreadPool& pool) {
  check_rows(x_RD, dy_RD, w_D, rstd_R);
  check_rows(x_RD, dx_RD, w_D, rstd_R);
  TESSERA_CHECK(dw_D.empty() || dw_D.shape() == w_D.view.shape(), "dw {}", dw_D.shape().to_string());
  TESSERA_CHECK(std::ssize(scratch) >= rmsnorm_backward_scratch_bytes(x_RD.dim(0), x_RD.dim(1)),
                "{} bytes of scratch for {}", scratch.size(), x_RD.shape().to_string());
  rmsnorm_table().chosen().backward(dy_RD, x_RD, w_D, rstd_R, dx_RD, dx_update,
                                    dw_or_scratch(dw_D, w_D.view, x_RD.dim(0), scratch), dw_update, scratch,
                                    pool);
}

void head_rmsnorm(ConstTensorView qkv_TQ, const AttentionShape& shape, int64_t head_begin, int64_t head_end,
                  const NormWeight& w_E, float eps, TensorView y_TQ, TensorView rstd, ThreadPool& pool) {
  check_heads(qkv_TQ, y_TQ, shape, head_begin, head_end, w_E, rstd);
  rmsnorm_table().chosen().head_forward(qkv_TQ, shape, head_begin, head_end, w_E, eps, y_TQ, rstd, pool);
}

int64_t head_rmsnorm_backward_scratch_bytes(int64_t tokens, int64_t weight_width) {
  return partial_dw_bytes(tokens, weight_width);
}

void head_rmsnorm_backward(TensorView dqkv_TQ, ConstTensorView qkv_TQ, const AttentionShape& shape,
                           int64_t head_begin, int64_t head_end, const NormWeight& w_E, ConstTensorView rstd,
                           TensorView dw_E, Update dw_update, std::span<std::byte> scratch,
                           ThreadPool& pool) {
  check_heads(qkv_TQ, dqkv_TQ, shape, head_begin, head_end, w_E, rstd);
  TESSERA_CHECK(dw_E.empty() || dw_E.shape() == w_E.view.shape(), "dw {}", dw_E.shape().to_string());
  TESSERA_CHECK(std::ssize(scratch) >= head_rmsnorm_backward_scratch_bytes(qkv_TQ.dim(0), w_E.view.dim(0)),
                "{} bytes of scratch for {}", scratch.size(), qkv_TQ.shape().to_string());
  rmsnorm_table().chosen().head_backward(dqkv_TQ, qkv_TQ, shape, head_begin, head_end, w_E, rstd,
                                         dw_or_scratch(dw_E, w_E.view, qkv_TQ.dim(0), scratch), dw_update,
                                         scratch, pool);
}

}  // namespace tessera
