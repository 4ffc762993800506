#include <algorithm>
#include <cmath>

#include "kernels/activation_type.h"
#include "kernels/rmsnorm/rmsnorm_impl.h"

namespace tessera {
namespace {

// One row: y = (offset + w) x rstd. Returns rstd.
template <typename A>
float forward_row(const A* x, const A* w, double offset, int64_t D, float eps, A* y) {
  double sum = 0;
  for (int64_t i = 0; i < D; ++i) sum += static_cast<double>(to_float(x[i])) * to_float(x[i]);
  const auto rstd = static_cast<float>(1 / std::sqrt(sum / static_cast<double>(D) + eps));
  for (int64_t i = 0; i < D; ++i) {
    y[i] = from_float<A>(static_cast<float>((offset + to_float(w[i])) * to_float(x[i]) * rstd));
  }
  return rstd;
}

// One row: dx = or += rstd (g - x rstd^2 mean(g x)) with g = dy (offset + w). dw += dy x rstd.
template <typename A>
void backward_row(const A* dy, const A* x, const A* w, double offset, double rstd, int64_t D, A* dx,
                  Update update, float* dw) {
  double mean = 0;
  for (int64_t i = 0; i < D; ++i) {
    mean += to_float(dy[i]) * (offset + to_float(w[i])) * to_float(x[i]) / static_cast<double>(D);
  }
  for (int64_t i = 0; i < D; ++i) {
    const double d = to_float(dy[i]);  // read before dx[i], which may be the same memory
    const double gradient = rstd * (d * (offset + to_float(w[i])) - to_float(x[i]) * rstd * rstd * mean);
    const double old = update == Update::kAdd ? to_float(dx[i]) : 0;
    dx[i] = from_float<A>(static_cast<float>(old + gradient));
    dw[i] = static_cast<float>(dw[i] + d * to_float(x[i]) * rstd);
  }
}

void forward_ref(ConstTensorView x_RD, const NormWeight& w_D, float eps, TensorView y_RD, TensorView rstd_R,
                 ThreadPool& /*pool*/) {
  const int64_t R = x_RD.dim(0), D = x_RD.dim(1);
  with_activation_type(x_RD.dtype(), [&]<typename A>(A) {
    for (int64_t r = 0; r < R; ++r) {
      rstd_R.as<float>()[r] =
          forward_row(x_RD.as<A>() + r * D, w_D.view.as<A>(), w_D.offset, D, eps, y_RD.as<A>() + r * D);
    }
  });
}

void add_forward_ref(TensorView x_TD, ConstTensorView y_TD, const NormWeight& w_D, float eps,
                     TensorView norm_TD, TensorView rstd_T, ThreadPool& pool) {
  with_activation_type(x_TD.dtype(), [&]<typename A>(A) {
    for (int64_t i = 0; i < x_TD.num_elements(); ++i) {
      x_TD.as<A>()[i] = from_float<A>(to_float(x_TD.as<A>()[i]) + to_float(y_TD.as<A>()[i]));
    }
  });
  forward_ref(x_TD, w_D, eps, norm_TD, rstd_T, pool);
}

void start_sums(TensorView dw, Update update) {
  if (update == Update::kOverwrite) std::fill_n(dw.as<float>(), dw.num_elements(), 0.0f);
}

void backward_ref(ConstTensorView dy_RD, ConstTensorView x_RD, const NormWeight& w_D, ConstTensorView rstd_R,
                  TensorView dx_RD, Update dx_update, TensorView dw_D, Update dw_update,
                  std::span<std::byte> /*scratch*/, ThreadPool& /*pool*/) {
  start_sums(dw_D, dw_update);
  const int64_t R = x_RD.dim(0), D = x_RD.dim(1);
  with_activation_type(x_RD.dtype(), [&]<typename A>(A) {
    for (int64_t r = 0; r < R; ++r) {
      backward_row(dy_RD.as<A>() + r * D, x_RD.as<A>() + r * D, w_D.view.as<A>(), w_D.offset,
                   rstd_R.as<float>()[r], D, dx_RD.as<A>() + r * D, dx_update, dw_D.as<float>());
    }
  });
}

void head_forward_ref(ConstTensorView qkv_TQ, const AttentionShape& shape, int64_t head_begin,
                      int64_t head_end, const NormWeight& w_E, float eps, TensorView y_TQ, TensorView rstd,
                      ThreadPool& /*pool*/) {
  const int64_t E = shape.head_dim, Q = shape.qkv_width(), width = w_E.view.dim(0);
  const int64_t num_norms = (head_end - head_begin) * E / width;
  with_activation_type(qkv_TQ.dtype(), [&]<typename A>(A) {
    for (int64_t t = 0; t < qkv_TQ.dim(0); ++t) {
      const A* x = qkv_TQ.as<A>() + t * Q;
      A* y = y_TQ.as<A>() + t * Q;
      for (int64_t i = 0; y != x && i < Q; ++i) {
        if (i < head_begin * E || i >= head_end * E) y[i] = x[i];
      }
      for (int64_t i = 0; i < num_norms; ++i) {
        const int64_t at = head_begin * E + i * width;
        rstd.as<float>()[t * num_norms + i] =
            forward_row(x + at, w_E.view.as<A>(), w_E.offset, width, eps, y + at);
      }
    }
  });
}

void head_backward_ref(TensorView dqkv_TQ, ConstTensorView qkv_TQ, const AttentionShape& shape,
                       int64_t head_begin, int64_t head_end, const NormWeight& w_E, ConstTensorView rstd,
                       TensorView dw_E, Update dw_update, std::span<std::byte> /*scratch*/,
                       ThreadPool& /*pool*/) {
  start_sums(dw_E, dw_update);
  const int64_t E = shape.head_dim, Q = shape.qkv_width(), width = w_E.view.dim(0);
  const int64_t num_norms = (head_end - head_begin) * E / width;
  with_activation_type(qkv_TQ.dtype(), [&]<typename A>(A) {
    for (int64_t t = 0; t < qkv_TQ.dim(0); ++t) {
      for (int64_t i = 0; i < num_norms; ++i) {
        const int64_t at = t * Q + head_begin * E + i * width;
        const float r = rstd.as<float>()[t * num_norms + i];
        A* dy = dqkv_TQ.as<A>() + at;
        backward_row(dy, qkv_TQ.as<A>() + at, w_E.view.as<A>(), w_E.offset, r, width, dy, Update::kOverwrite,
                     dw_E.as<float>());
      }
    }
  });
}

}  // namespace

std::vector<Implementation<RmsNormKernels>> rmsnorm_ref() {
  return {{"ref",
           Isa::kRef,
           {.forward = forward_ref,
            .add_forward = add_forward_ref,
            .backward = backward_ref,
            .head_forward = head_forward_ref,
            .head_backward = head_backward_ref}}};
}

}  // namespace tessera
