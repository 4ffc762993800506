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

void Ops::route(TensorView /*p_TE*/, ExpertWeights /*form*/, TensorView /*w_TK*/, ExpertRows& /*rows*/,
                RouterLoad* /*load*/) {
  check_unreachable(*this, "route");
}

void Ops::route_backward(ConstTensorView /*p_TE*/, const ExpertRows& /*rows*/, ExpertWeights /*form*/,
                         ConstTensorView /*w_TK*/, ConstTensorView /*dw_TK*/,
                         std::span<const float> /*balance_E*/, TensorView /*dl_TE*/) {
  check_unreachable(*this, "route_backward");
}

void Ops::gather_expert_rows(ConstTensorView /*x_TD*/, const ExpertRows& /*rows*/, TensorView /*x_RD*/) {
  check_unreachable(*this, "gather_expert_rows");
}

void Ops::combine_expert_rows(ConstTensorView /*y_RD*/, const ExpertRows& /*rows*/, ConstTensorView /*w_TK*/,
                              TensorView /*y_TD*/, Update /*update*/) {
  check_unreachable(*this, "combine_expert_rows");
}

void Ops::weigh_expert_rows(const ExpertRows& /*rows*/, ConstTensorView /*w_TK*/, TensorView /*a_RF*/,
                            TensorView /*b_RF*/, TensorView /*dw_TK*/) {
  check_unreachable(*this, "weigh_expert_rows");
}

void Ops::add_expert_bias(const ExpertRows& /*rows*/, ConstTensorView /*b_EN*/, TensorView /*y_RN*/) {
  check_unreachable(*this, "add_expert_bias");
}

void Ops::expert_bias_backward(const ExpertRows& /*rows*/, ConstTensorView /*g_RN*/, ConstTensorView /*w_TK*/,
                               ConstTensorView /*b_EN*/, TensorView /*dw_TK*/, TensorView /*db_EN*/,
                               Update /*update*/) {
  check_unreachable(*this, "expert_bias_backward");
}

void Ops::clamped_swiglu(ConstTensorView /*pre_TF2*/, const ClampedSwiglu& /*clamp*/, TensorView /*h_TF*/) {
  check_unreachable(*this, "clamped_swiglu");
}

void Ops::clamped_swiglu_backward(ConstTensorView /*dh_TF*/, ConstTensorView /*pre_TF2*/,
                                  const ClampedSwiglu& /*clamp*/, TensorView /*dpre_TF2*/,
                                  TensorView /*h_TF*/) {
  check_unreachable(*this, "clamped_swiglu_backward");
}

}  // namespace tessera
