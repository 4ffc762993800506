// Building blocks of the rules in kernels/optimizer/element_update.h. Plain C++, so that compilers of other
// devices accept it too.
#pragma once

#include <cstdint>
#include <string_view>

namespace tessera {

// A moment that a rule keeps for each element.
struct UpdateMoment {
  std::string_view name;   // as in torch.optim, and in checkpoints
  bool is_square = false;  // never negative; 8-bit codes keep its root
};

// The inputs to a rule's factors, T::Scalars, which are computed in double and rounded to float32
// once.
struct UpdateStep {
  int64_t step;  // from 1
  double learning_rate;
  double beta1;
  double beta2;
  double epsilon;
  double weight_decay;  // 0 makes the scalar `decay` 1
  double gradient_scale = 1;
};

}  // namespace tessera
