// AdamW. Loshchilov and Hutter, 2019; formulas and their order as in torch.optim.AdamW (single tensor,
// float32):
//
//   g *= gradient_scale     w *= 1 - lr wd      m = b1 m + (1 - b1) g     v = b2 v + (1 - b2) g^2
//   w -= lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
#if defined(TESSERA_UPDATE_FORMULAS)  // kernels/optimizer/formulas-inl.h

template <class Set, class F>
HWY_INLINE F update_element(const AdamWScalars& s, Set set, F weight, F gradient, F* moments) {
  F &m = moments[0], &v = moments[1];
  const F g = gradient * set(s.gradient_scale);
  m = set(s.beta1) * m + set(s.one_minus_beta1) * g;
  v = set(s.beta2) * v + set(s.one_minus_beta2) * g * g;
  const F denominator = square_root(v) / set(s.bias_correction2_sqrt) + set(s.epsilon);
  return weight * set(s.decay) - set(s.step_size) * (m / denominator);
}

#elif !defined(TESSERA_KERNELS_OPTIMIZER_ADAMW_H_)
#define TESSERA_KERNELS_OPTIMIZER_ADAMW_H_

#include <array>
#include <cmath>
#include <cstdint>

#include "kernels/optimizer/update_rule.h"

namespace tessera {

struct AdamWScalars {
  int64_t step;
  float gradient_scale;
  float decay;  // 1 - lr wd
  float beta1;
  float one_minus_beta1;
  float beta2;
  float one_minus_beta2;
  float bias_correction2_sqrt;  // sqrt(1 - b2^t)
  float epsilon;
  float step_size;  // lr / (1 - b1^t)
};

struct AdamWRule {
  using Scalars = AdamWScalars;
  static constexpr std::array kMoments = {UpdateMoment{"exp_avg"},
                                          UpdateMoment{"exp_avg_sq", /*is_square=*/true}};

  static Scalars scalars(const UpdateStep& s) {
    const double bias_correction1 = 1 - std::pow(s.beta1, static_cast<double>(s.step));
    const double bias_correction2 = 1 - std::pow(s.beta2, static_cast<double>(s.step));
    return {.step = s.step,
            .gradient_scale = static_cast<float>(s.gradient_scale),
            .decay = static_cast<float>(1 - s.learning_rate * s.weight_decay),
            .beta1 = static_cast<float>(s.beta1),
            .one_minus_beta1 = static_cast<float>(1 - s.beta1),
            .beta2 = static_cast<float>(s.beta2),
            .one_minus_beta2 = static_cast<float>(1 - s.beta2),
            .bias_correction2_sqrt = static_cast<float>(std::sqrt(bias_correction2)),
            .epsilon = static_cast<float>(s.epsilon),
            .step_size = static_cast<float>(s.learning_rate / bias_correction1)};
  }
};

}  // namespace tessera

#endif
