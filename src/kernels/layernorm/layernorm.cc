#include "kernels/layernorm/layernorm.h"

#include "kernels/layernorm/layernorm_impl.h"

namespace tessera {

const DispatchTable<LayerNormKernels>& layernorm_table() {
  static const DispatchTable<LayerNormKernels> table("layernorm", concat(layernorm_hwy(), layernorm_ref()));
  return table;
}

namespace {

void check_layernorm(ConstTensorView x_RD, ConstTensorView w_D, ConstTensorView y_RD,
                     ConstTensorView stats_R2) {
  TESSERA_CHECK(x_RD.shape().rank() == 2 && w_D.num_elements() == x_RD.dim(1) &&
                    y_RD.shape() == x_RD.shape() && stats_R2.shape() == (Shape{x_RD.dim(0), 2}) &&
                    stats_R2.dtype() == DType::kF32 && w_D.dtype() == x_RD.dtype() &&
                    y_RD.dtype() == x_RD.dtype(),
                "x {} {}, w {}, y {}, stats {}", dtype_name(x_RD.dtype()), x_RD.shape().to_string(),
                w_D.shape().to_string(), y_RD.shape().to_string(), stats_R2.shape().to_string());
}

void check_vector(ConstTensorView vector_D, int64_t width, DType dtype) {
  TESSERA_CHECK(vector_D.empty() || (vector_D.num_elements() == width && vector_D.dtype() == dtype),
                "{} {} of {}", dtype_name(vector_D.dtype()), vector_D.shape().to_string(), width);
}

}  // namespace

void layernorm(ConstTensorView x_RD, ConstTensorView w_D, ConstTensorView b_D, float eps, TensorView y_RD,
               TensorView stats_R2, ThreadPool& pool) {
  check_layernorm(x_RD, w_D, y_RD, stats_R2);
  check_vector(b_D, x_RD.dim(1), x_RD.dtype());
  layernorm_table().chosen().forward(x_RD, w_D, b_D, eps, y_RD, stats_R2, pool);
}

void layernorm_backward(ConstTensorView dy_RD, ConstTensorView x_RD, ConstTensorView w_D,
                        ConstTensorView stats_R2, TensorView dx_RD, Update dx_update, TensorView dw_D,
                        TensorView db_D, Update dw_update, ThreadPool& pool) {
  check_layernorm(x_RD, w_D, dy_RD, stats_R2);
  check_layernorm(x_RD, w_D, dx_RD, stats_R2);
  check_vector(dw_D, x_RD.dim(1), DType::kF32);
  check_vector(db_D, x_RD.dim(1), DType::kF32);
  layernorm_table().chosen().backward(dy_RD, x_RD, w_D, stats_R2, dx_RD, dx_update, dw_D, db_D, dw_update,
                                      pool);
}

}  // namespace tessera
