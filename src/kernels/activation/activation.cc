#include "kernels/activation/activation.h"

#include "kernels/activation/activation_impl.h"

namespace tessera {

const DispatchTable<ActivationKernels>& activation_table() {
  static const DispatchTable<ActivationKernels> table("activation",
                                                      concat(activation_hwy(), activation_ref()));
  return table;
}

namespace {

void check_widths(Activation which, ConstTensorView pre_TP, ConstTensorView h_TF) {
  const int64_t halves = is_gated(which) ? 2 : 1;
  TESSERA_CHECK(which != Activation::kGatedSilu && h_TF.shape().rank() == 2 &&
                    pre_TP.shape() == (Shape{h_TF.dim(0), halves * h_TF.dim(1)}) &&
                    pre_TP.dtype() == h_TF.dtype(),
                "activation {}: pre {} {}, h {} {}", static_cast<int>(which), dtype_name(pre_TP.dtype()),
                pre_TP.shape().to_string(), dtype_name(h_TF.dtype()), h_TF.shape().to_string());
}

}  // namespace

void activation(Activation which, ConstTensorView pre_TP, TensorView h_TF, ThreadPool& pool) {
  check_widths(which, pre_TP, h_TF);
  activation_table().chosen().forward(which, pre_TP, h_TF, pool);
}

void activation_backward(Activation which, ConstTensorView dh_TF, ConstTensorView pre_TP, TensorView dpre_TP,
                         TensorView h_TF, ThreadPool& pool) {
  check_widths(which, pre_TP, dh_TF);
  check_widths(which, dpre_TP, dh_TF);
  check_widths(which, pre_TP, h_TF);
  activation_table().chosen().backward(which, dh_TF, pre_TP, dpre_TP, h_TF, pool);
}

}  // namespace tessera
