#include <cmath>
#include <numbers>

#include "kernels/activation/activation_impl.h"
#include "kernels/activation_type.h"

namespace tessera {
namespace {

// f(x) and its derivative.
struct FunctionValue {
  double value, slope;
};

FunctionValue function_at(Activation which, double x) {
  if (which == Activation::kRelu) return {x > 0 || std::isnan(x) ? x : 0, x > 0 ? 1.0 : 0.0};
  if (which == Activation::kGelu || which == Activation::kGatedGelu) {
    const double phi = 0.5 * std::erfc(-x / std::numbers::sqrt2);
    const double density = std::exp(-x * x / 2) / std::sqrt(2 * std::numbers::pi);
    return {x * phi, phi + x * density};
  }
  const double root = std::sqrt(2 / std::numbers::pi), u = root * (x + 0.044715 * x * x * x);
  const double s = 1 / (1 + std::exp(-2 * u));
  return {x * s, s + x * s * (1 - s) * 2 * root * (1 + 3 * 0.044715 * x * x)};
}

void forward_ref(Activation which, ConstTensorView pre_TP, TensorView h_TF, ThreadPool& /*pool*/) {
  const int64_t T = h_TF.dim(0), F = h_TF.dim(1), P = pre_TP.dim(1);
  with_activation_type(h_TF.dtype(), [&]<typename A>(A) {
    for (int64_t t = 0; t < T; ++t) {
      const A* pre = pre_TP.as<A>() + t * P;
      for (int64_t f = 0; f < F; ++f) {
        const double up = is_gated(which) ? to_float(pre[F + f]) : 1;
        h_TF.as<A>()[t * F + f] =
            from_float<A>(static_cast<float>(function_at(which, to_float(pre[f])).value * up));
      }
    }
  });
}

void backward_ref(Activation which, ConstTensorView dh_TF, ConstTensorView pre_TP, TensorView dpre_TP,
                  TensorView h_TF, ThreadPool& /*pool*/) {
  const int64_t T = dh_TF.dim(0), F = dh_TF.dim(1), P = pre_TP.dim(1);
  with_activation_type(dh_TF.dtype(), [&]<typename A>(A) {
    for (int64_t t = 0; t < T; ++t) {
      const A* pre = pre_TP.as<A>() + t * P;
      A* dpre = dpre_TP.as<A>() + t * P;
      for (int64_t f = 0; f < F; ++f) {
        const auto [value, slope] = function_at(which, to_float(pre[f]));
        const double up = is_gated(which) ? to_float(pre[F + f]) : 1;
        const double dh = to_float(dh_TF.as<A>()[t * F + f]);
        dpre[f] = from_float<A>(static_cast<float>(dh * up * slope));
        if (is_gated(which)) dpre[F + f] = from_float<A>(static_cast<float>(dh * value));
        h_TF.as<A>()[t * F + f] = from_float<A>(static_cast<float>(value * up));
      }
    }
  });
}

}  // namespace

std::vector<Implementation<ActivationKernels>> activation_ref() {
  return {{"ref", Isa::kRef, {.forward = forward_ref, .backward = backward_ref}}};
}

}  // namespace tessera
