#include "kernels/activation_type.h"
#include "kernels/gemm/gemm_impl.h"

namespace tessera {
namespace {

int64_t scratch_bytes(GemmProduct /*product*/, const GemmLimits& /*limits*/) { return 0; }

// Sums are double, so that a result is (almost always) the exact one rounded once.
void forward(ConstTensorView x_TK, const LinearWeight& weight, ConstTensorView bias_N, TensorView y_TN,
             std::span<std::byte> /*scratch*/, ThreadPool& pool) {
  const ConstTensorView w_NK = weight.w_NK;
  const int64_t T = x_TK.dim(0), K = x_TK.dim(1), N = w_NK.dim(0);
  with_activation_type(x_TK.dtype(), [&]<typename A>(A) {
    with_activation_type(y_TN.dtype(), [&]<typename Y>(Y) {
      const A* x = x_TK.as<A>();
      const A* w = w_NK.as<A>();
      const A* bias = bias_N.empty() ? nullptr : bias_N.as<A>();
      Y* y = y_TN.as<Y>();
      pool.parallel_for(T, [&](int64_t t) {
        for (int64_t n = 0; n < N; ++n) {
          double sum = bias == nullptr ? 0 : to_float(bias[n]);
          for (int64_t k = 0; k < K; ++k) {
            sum += static_cast<double>(to_float(x[t * K + k])) * to_float(w[n * K + k]);
          }
          y[t * N + n] = from_float<Y>(static_cast<float>(sum));
        }
      });
    });
  });
}

void backward_input(ConstTensorView dy_TN, const LinearWeight& weight, TensorView dx_TK, Update update,
                    std::span<std::byte> /*scratch*/, ThreadPool& pool) {
  const ConstTensorView w_NK = weight.w_NK;
  const int64_t T = dy_TN.dim(0), N = dy_TN.dim(1), K = w_NK.dim(1);
  with_activation_type(dy_TN.dtype(), [&]<typename A>(A) {
    with_activation_type(dx_TK.dtype(), [&]<typename X>(X) {
      const A* dy = dy_TN.as<A>();
      const A* w = w_NK.as<A>();
      X* dx = dx_TK.as<X>();
      pool.parallel_for(T, [&](int64_t t) {
        for (int64_t k = 0; k < K; ++k) {
          double sum = update == Update::kAdd ? to_float(dx[t * K + k]) : 0;
          for (int64_t n = 0; n < N; ++n) {
            sum += static_cast<double>(to_float(dy[t * N + n])) * to_float(w[n * K + k]);
          }
          dx[t * K + k] = from_float<X>(static_cast<float>(sum));
        }
      });
    });
  });
}

void backward_weight(ConstTensorView dy_TN, ConstTensorView x_TK, TensorView dw_NK, WeightUpdate update,
                     std::span<std::byte> /*scratch*/, ThreadPool& pool) {
  const int64_t T = dy_TN.dim(0), N = dy_TN.dim(1), K = x_TK.dim(1);
  with_activation_type(dy_TN.dtype(), [&]<typename A>(A) {
    const A* dy = dy_TN.as<A>();
    const A* x = x_TK.as<A>();
    float* dw = dw_NK.as<float>();
    pool.parallel_for(N, [&](int64_t n) {
      for (int64_t k = 0; k < K; ++k) {
        double sum = update.mode == Update::kAdd ? dw[n * K + k] : 0;
        for (int64_t t = 0; t < T; ++t) {
          sum += static_cast<double>(to_float(dy[t * N + n])) * to_float(x[t * K + k]);
        }
        dw[n * K + k] = static_cast<float>(sum);
      }
    });
  });
}

}  // namespace

const GemmKernels kGemmRef = {scratch_bytes, forward, backward_input, backward_weight};

}  // namespace tessera
