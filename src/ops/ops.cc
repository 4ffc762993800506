#include "ops/ops.h"

#include "base/error.h"

namespace tessera {
namespace {

// Models that need these are refused on other devices (plan/run_planner.h) before they call one.
void check_unreachable(const Ops& ops, const char* operation) {
  TESSERA_CHECK(false, "{} is not an operation of {}", operation, ops.description());
}

}  // namespace

void Ops::general_attention(const AttentionInputs& /*inputs*/, const AttentionShape& /*shape*/,
                            TensorView /*o_THE*/, TensorView /*lse_HT*/) {
  check_unreachable(*this, "general_attention");
}

void Ops::general_attention_backward(ConstTensorView /*do_THE*/, const AttentionInputs& /*inputs*/,
                                     ConstTensorView /*o_THE*/, ConstTensorView /*lse_HT*/,
                                     const AttentionShape& /*shape*/,
                                     const AttentionGradients& /*gradients*/) {
  check_unreachable(*this, "general_attention_backward");
}

void Ops::activation(Activation /*which*/, ConstTensorView /*pre_TP*/, TensorView /*h_TF*/) {
  check_unreachable(*this, "activation");
}

void Ops::activation_backward(Activation /*which*/, ConstTensorView /*dh_TF*/, ConstTensorView /*pre_TP*/,
                              TensorView /*dpre_TP*/, TensorView /*h_TF*/) {
  check_unreachable(*this, "activation_backward");
}

void Ops::layernorm(ConstTensorView /*x_RD*/, ConstTensorView /*w_D*/, ConstTensorView /*b_D*/, float /*eps*/,
                    TensorView /*y_RD*/, TensorView /*stats_R2*/) {
  check_unreachable(*this, "layernorm");
}

void Ops::layernorm_backward(ConstTensorView /*dy_RD*/, ConstTensorView /*x_RD*/, ConstTensorView /*w_D*/,
                             ConstTensorView /*stats_R2*/, TensorView /*dx_RD*/, Update /*dx_update*/,
                             TensorView /*dw_D*/, TensorView /*db_D*/, Update /*dw_update*/) {
  check_unreachable(*this, "layernorm_backward");
}

void Ops::scale(ConstTensorView /*x*/, float /*factor*/, TensorView /*y*/) {
  check_unreachable(*this, "scale");
}

void Ops::soft_cap(TensorView /*x*/, float /*cap*/) { check_unreachable(*this, "soft_cap"); }

void Ops::soft_cap_backward(ConstTensorView /*y*/, float /*cap*/, TensorView /*dx*/) {
  check_unreachable(*this, "soft_cap_backward");
}

}  // namespace tessera
