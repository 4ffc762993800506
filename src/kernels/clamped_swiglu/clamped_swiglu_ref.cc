#include <cmath>

#include "kernels/activation_type.h"
#include "kernels/clamped_swiglu/clamped_swiglu_impl.h"

namespace tessera {
namespace {

// One pair. Comparisons are false for NaN, which stays.
struct ClampedPair {
  ClampedPair(double gate, double up, const ClampedSwiglu& clamp)
      : gate_is_cut(gate > clamp.limit), up_is_cut(std::abs(up) > clamp.limit), alpha(clamp.alpha) {
    g = gate_is_cut ? clamp.limit : gate;
    u = up_is_cut ? std::copysign(static_cast<double>(clamp.limit), up) : up;
    s = 1 / (1 + std::exp(-alpha * g));
  }

  double h() const { return (u + 1) * g * s; }
  double dgate(double dh) const { return gate_is_cut ? 0 : dh * (u + 1) * s * (1 + alpha * g * (1 - s)); }
  double dup(double dh) const { return up_is_cut ? 0 : dh * g * s; }

  bool gate_is_cut, up_is_cut;
  double alpha, g = 0, u = 0, s = 0;
};

void clamped_forward_ref(ConstTensorView pre_TF2, const ClampedSwiglu& clamp, TensorView h_TF,
                         ThreadPool& /*pool*/) {
  with_activation_type(h_TF.dtype(), [&]<typename A>(A) {
    const A* pre = pre_TF2.as<A>();
    for (int64_t i = 0; i < h_TF.num_elements(); ++i) {
      const ClampedPair pair(to_float(pre[2 * i]), to_float(pre[2 * i + 1]), clamp);
      h_TF.as<A>()[i] = from_float<A>(static_cast<float>(pair.h()));
    }
  });
}

void clamped_backward_ref(ConstTensorView dh_TF, ConstTensorView pre_TF2, const ClampedSwiglu& clamp,
                          TensorView dpre_TF2, TensorView h_TF, ThreadPool& /*pool*/) {
  with_activation_type(dh_TF.dtype(), [&]<typename A>(A) {
    const A* pre = pre_TF2.as<A>();
    for (int64_t i = 0; i < dh_TF.num_elements(); ++i) {
      const ClampedPair pair(to_float(pre[2 * i]), to_float(pre[2 * i + 1]), clamp);
      const double dh = to_float(dh_TF.as<A>()[i]);
      dpre_TF2.as<A>()[2 * i] = from_float<A>(static_cast<float>(pair.dgate(dh)));
      dpre_TF2.as<A>()[2 * i + 1] = from_float<A>(static_cast<float>(pair.dup(dh)));
      h_TF.as<A>()[i] = from_float<A>(static_cast<float>(pair.h()));
    }
  });
}

}  // namespace

std::vector<Implementation<ClampedSwigluKernels>> clamped_swiglu_ref() {
  return {{"ref", Isa::kRef, {.forward = clamped_forward_ref, .backward = clamped_backward_ref}}};
}

}  // namespace tessera
