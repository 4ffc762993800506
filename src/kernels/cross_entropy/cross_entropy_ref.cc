#include <cmath>
#include <limits>

#include "kernels/cross_entropy/cross_entropy_impl.h"

namespace tessera {
namespace {

SoftmaxSum softmax_sum_ref(const float* x, int64_t count) {
  SoftmaxSum result = {-std::numeric_limits<float>::infinity(), 0};
  for (int64_t v = 0; v < count; ++v) {
    if (!(x[v] < std::numeric_limits<float>::infinity())) {
      return {std::numeric_limits<float>::quiet_NaN(), 0};
    }
    result.max = std::max(result.max, x[v]);
  }
  for (int64_t v = 0; v < count; ++v) result.sum_exp += std::exp(static_cast<double>(x[v]) - result.max);
  return result;
}

double sum_ref(const float* x, int64_t count) {
  double sum = 0;
  for (int64_t v = 0; v < count; ++v) sum += x[v];
  return sum;
}

template <typename A>
void gradient_ref(const float* x, int64_t count, float max, double factor, double offset, A* dx) {
  for (int64_t v = 0; v < count; ++v) {
    dx[v] = from_float<A>(static_cast<float>(factor * std::exp(static_cast<double>(x[v]) - max) - offset));
  }
}

}  // namespace

std::vector<Implementation<CrossEntropyKernels>> cross_entropy_ref() {
  return {{"ref",
           Isa::kRef,
           {.softmax_sum = softmax_sum_ref,
            .sum = sum_ref,
            .gradient_f32 = gradient_ref<float>,
            .gradient_bf16 = gradient_ref<bf16>},
           nullptr}};
}

}  // namespace tessera
