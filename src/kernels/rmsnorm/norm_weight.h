// The weight of a norm: w, or 1 + w as Gemma stores it.
#pragma once

#include "tensor/tensor_view.h"

namespace tessera {

struct NormWeight {
  ConstTensorView view;
  float offset = 0;  // added to every element

  NormWeight(ConstTensorView w, float added = 0) : view(w), offset(added) {}  // NOLINT: most have none
  NormWeight(TensorView w, float added = 0) : view(w), offset(added) {}       // NOLINT
};

}  // namespace tessera
