#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cross_entropy/cross_entropy_impl.h"

namespace tessera {
namespace {

template <typename A>
double row(const float* logits, int64_t vocab_size, int32_t target, float label_smoothing, float grad_scale,
           A* dlogits) {
  double max = -std::numeric_limits<double>::infinity();
  for (int64_t v = 0; v < vocab_size; ++v) max = std::max<double>(max, logits[v]);
  double sum_exp = 0, sum = 0;
  for (int64_t v = 0; v < vocab_size; ++v) {
    sum_exp += std::exp(logits[v] - max);
    sum += logits[v];
  }
  const double lse = max + std::log(sum_exp);
  const double s = label_smoothing;
  double loss = (1 - s) * (lse - logits[target]);
  if (s != 0) loss += s * (lse - sum / static_cast<double>(vocab_size));
  if (dlogits == nullptr) return loss;
  for (int64_t v = 0; v < vocab_size; ++v) {
    const double expected = (v == target ? 1 - s : 0) + s / static_cast<double>(vocab_size);
    dlogits[v] = from_float<A>(static_cast<float>(grad_scale * (std::exp(logits[v] - lse) - expected)));
  }
  return loss;
}

}  // namespace

std::vector<Implementation<CrossEntropyKernels>> cross_entropy_ref() {
  return {{"ref", Isa::kRef, {.row_f32 = row<float>, .row_bf16 = row<bf16>}, nullptr}};
}

}  // namespace tessera
