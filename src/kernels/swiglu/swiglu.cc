#include "kernels/swiglu/swiglu.h"

#include "kernels/swiglu/swiglu_impl.h"

namespace tessera {

const DispatchTable<SwigluKernels>& swiglu_table() {
  static const DispatchTable<SwigluKernels> table("swiglu", concat(swiglu_hwy(), swiglu_ref()));
  return table;
}

namespace {

void check_shapes(ConstTensorView gate_up_TF2, ConstTensorView h_TF) {
  TESSERA_CHECK(h_TF.shape().rank() == 2 && gate_up_TF2.shape() == (Shape{h_TF.dim(0), 2 * h_TF.dim(1)}) &&
                    gate_up_TF2.dtype() == h_TF.dtype(),
                "gate_up {} {}, h {} {}", dtype_name(gate_up_TF2.dtype()), gate_up_TF2.shape().to_string(),
                dtype_name(h_TF.dtype()), h_TF.shape().to_string());
}

}  // namespace

void swiglu(ConstTensorView gate_up_TF2, TensorView h_TF, ThreadPool& pool) {
  check_shapes(gate_up_TF2, h_TF);
  swiglu_table().chosen().forward(gate_up_TF2, h_TF, pool);
}

void swiglu_backward(ConstTensorView dh_TF, ConstTensorView gate_up_TF2, TensorView dgate_up_TF2,
                     TensorView h_TF, ThreadPool& pool) {
  check_shapes(gate_up_TF2, dh_TF);
  check_shapes(dgate_up_TF2, dh_TF);
  check_shapes(gate_up_TF2, h_TF);
  swiglu_table().chosen().backward(dh_TF, gate_up_TF2, dgate_up_TF2, h_TF, pool);
}

}  // namespace tessera
