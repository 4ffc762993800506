#include <cmath>

#include "kernels/activation_type.h"
#include "kernels/swiglu/swiglu_impl.h"

namespace tessera {
namespace {

void forward_ref(ConstTensorView gate_up_TF2, TensorView h_TF, ThreadPool& /*pool*/) {
  const int64_t T = h_TF.dim(0), F = h_TF.dim(1);
  with_activation_type(h_TF.dtype(), [&]<typename A>(A) {
    for (int64_t t = 0; t < T; ++t) {
      const A* gate = gate_up_TF2.as<A>() + t * 2 * F;
      const A* up = gate + F;
      A* h = h_TF.as<A>() + t * F;
      for (int64_t f = 0; f < F; ++f) {
        const double x = to_float(gate[f]);
        const double s = 1 / (1 + std::exp(-x));
        h[f] = from_float<A>(static_cast<float>(x * s * to_float(up[f])));
      }
    }
  });
}

void backward_ref(ConstTensorView dh_TF, ConstTensorView gate_up_TF2, TensorView dgate_up_TF2,
                  TensorView h_TF, ThreadPool& /*pool*/) {
  const int64_t T = dh_TF.dim(0), F = dh_TF.dim(1);
  with_activation_type(dh_TF.dtype(), [&]<typename A>(A) {
    for (int64_t t = 0; t < T; ++t) {
      const A* dh = dh_TF.as<A>() + t * F;
      const A* gate = gate_up_TF2.as<A>() + t * 2 * F;
      const A* up = gate + F;
      A* dgate = dgate_up_TF2.as<A>() + t * 2 * F;
      A* dup = dgate + F;
      A* h = h_TF.as<A>() + t * F;
      for (int64_t f = 0; f < F; ++f) {
        const double x = to_float(gate[f]), u = to_float(up[f]), d = to_float(dh[f]);
        const double s = 1 / (1 + std::exp(-x));
        dgate[f] = from_float<A>(static_cast<float>(d * u * s * (1 + x * (1 - s))));
        dup[f] = from_float<A>(static_cast<float>(d * x * s));
        h[f] = from_float<A>(static_cast<float>(x * s * u));
      }
    }
  });
}

}  // namespace

std::vector<Implementation<SwigluKernels>> swiglu_ref() {
  return {{"ref", Isa::kRef, {.forward = forward_ref, .backward = backward_ref}}};
}

}  // namespace tessera
