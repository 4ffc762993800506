#include <cmath>
#include <limits>

#include "kernels/cross_entropy/cross_entropy_impl.h"

namespace tessera {
namespace {

float max_ref(const float* x, int64_t count) {
  float max = -std::numeric_limits<float>::infinity();
  for (int64_t v = 0; v < count; ++v) {
    if (std::isnan(x[v])) return x[v];
    max = std::max(max, x[v]);
  }
  return max;
}

double sum_of_exps_ref(const float* x, int64_t count, float max) {
  double sum = 0;
  for (int64_t v = 0; v < count; ++v) sum += std::exp(static_cast<double>(x[v]) - max);
  return sum;
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
           {.max = max_ref,
            .sum_of_exps = sum_of_exps_ref,
            .sum = sum_ref,
            .gradient_f32 = gradient_ref<float>,
            .gradient_bf16 = gradient_ref<bf16>},
           nullptr}};
}

}  // namespace tessera
