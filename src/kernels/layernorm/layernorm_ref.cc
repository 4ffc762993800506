#include <cmath>
#include <vector>

#include "kernels/activation_type.h"
#include "kernels/layernorm/layernorm_impl.h"

namespace tessera {
namespace {

void forward_ref(ConstTensorView x_RD, ConstTensorView w_D, ConstTensorView b_D, float eps, TensorView y_RD,
                 TensorView stats_R2, ThreadPool& /*pool*/) {
  const int64_t R = x_RD.dim(0), D = x_RD.dim(1);
  with_activation_type(x_RD.dtype(), [&]<typename A>(A) {
    for (int64_t r = 0; r < R; ++r) {
      const A* x = x_RD.as<A>() + r * D;
      double mean = 0, variance = 0;
      for (int64_t i = 0; i < D; ++i) mean += to_float(x[i]) / static_cast<double>(D);
      for (int64_t i = 0; i < D; ++i) variance += std::pow(to_float(x[i]) - mean, 2) / static_cast<double>(D);
      const double rstd = 1 / std::sqrt(variance + eps);
      for (int64_t i = 0; i < D; ++i) {
        const double bias = b_D.empty() ? 0 : to_float(b_D.as<A>()[i]);
        y_RD.as<A>()[r * D + i] = from_float<A>(
            static_cast<float>((to_float(x[i]) - mean) * rstd * to_float(w_D.as<A>()[i]) + bias));
      }
      stats_R2.as<float>()[2 * r] = static_cast<float>(mean);
      stats_R2.as<float>()[2 * r + 1] = static_cast<float>(rstd);
    }
  });
}

void backward_ref(ConstTensorView dy_RD, ConstTensorView x_RD, ConstTensorView w_D, ConstTensorView stats_R2,
                  TensorView dx_RD, Update dx_update, TensorView dw_D, TensorView db_D, Update dw_update,
                  ThreadPool& /*pool*/) {
  const int64_t R = x_RD.dim(0), D = x_RD.dim(1);
  std::vector<double> dw(static_cast<size_t>(D)), db(dw.size());
  with_activation_type(x_RD.dtype(), [&]<typename A>(A) {
    for (int64_t r = 0; r < R; ++r) {
      const A *x = x_RD.as<A>() + r * D, *dy = dy_RD.as<A>() + r * D;
      const double mean = stats_R2.as<float>()[2 * r], rstd = stats_R2.as<float>()[2 * r + 1];
      const auto n = [&](int64_t i) { return (to_float(x[i]) - mean) * rstd; };
      const auto g = [&](int64_t i) {
        return static_cast<double>(to_float(dy[i])) * to_float(w_D.as<A>()[i]);
      };
      double mean_g = 0, mean_gn = 0;
      for (int64_t i = 0; i < D; ++i) {
        mean_g += g(i) / static_cast<double>(D);
        mean_gn += g(i) * n(i) / static_cast<double>(D);
        dw[static_cast<size_t>(i)] += to_float(dy[i]) * n(i);
        db[static_cast<size_t>(i)] += to_float(dy[i]);
      }
      A* dx = dx_RD.as<A>() + r * D;
      for (int64_t i = 0; i < D; ++i) {
        const double gradient = rstd * (g(i) - mean_g - n(i) * mean_gn);
        const double before = dx_update == Update::kAdd ? to_float(dx[i]) : 0;
        dx[i] = from_float<A>(static_cast<float>(before + gradient));
      }
    }
  });
  const auto store = [&](const std::vector<double>& sums, TensorView to) {
    for (size_t i = 0; !to.empty() && i < sums.size(); ++i) {
      float& value = to.as<float>()[i];
      value = static_cast<float>(sums[i] + (dw_update == Update::kAdd ? value : 0));
    }
  };
  store(dw, dw_D);
  store(db, db_D);
}

}  // namespace

std::vector<Implementation<LayerNormKernels>> layernorm_ref() {
  return {{"ref", Isa::kRef, {.forward = forward_ref, .backward = backward_ref}}};
}

}  // namespace tessera
