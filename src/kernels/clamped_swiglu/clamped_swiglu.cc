#include "kernels/clamped_swiglu/clamped_swiglu.h"

#include "kernels/clamped_swiglu/clamped_swiglu_impl.h"

namespace tessera {

const DispatchTable<ClampedSwigluKernels>& clamped_swiglu_table() {
  static const DispatchTable<ClampedSwigluKernels> table("clamped_swiglu",
                                                         concat(clamped_swiglu_hwy(), clamped_swiglu_ref()));
  return table;
}

namespace {

void check_pairs(ConstTensorView pre_TF2, ConstTensorView h_TF) {
  TESSERA_CHECK(h_TF.shape().rank() == 2 && pre_TF2.shape() == (Shape{h_TF.dim(0), 2 * h_TF.dim(1)}) &&
                    pre_TF2.dtype() == h_TF.dtype(),
                "pre {} {}, h {} {}", dtype_name(pre_TF2.dtype()), pre_TF2.shape().to_string(),
                dtype_name(h_TF.dtype()), h_TF.shape().to_string());
}

}  // namespace

void clamped_swiglu(ConstTensorView pre_TF2, const ClampedSwiglu& clamp, TensorView h_TF, ThreadPool& pool) {
  check_pairs(pre_TF2, h_TF);
  clamped_swiglu_table().chosen().forward(pre_TF2, clamp, h_TF, pool);
}

void clamped_swiglu_backward(ConstTensorView dh_TF, ConstTensorView pre_TF2, const ClampedSwiglu& clamp,
                             TensorView dpre_TF2, TensorView h_TF, ThreadPool& pool) {
  check_pairs(pre_TF2, dh_TF);
  check_pairs(dpre_TF2, dh_TF);
  check_pairs(pre_TF2, h_TF);
  clamped_swiglu_table().chosen().backward(dh_TF, pre_TF2, clamp, dpre_TF2, h_TF, pool);
}

}  // namespace tessera
