// Maps the dtype of a call to the C++ type of its activations.
#pragma once

#include <utility>

#include "base/error.h"
#include "tensor/dtype.h"

namespace tessera {

// Calls body(bf16{}) or body(float{}); any other dtype is a bug.
template <typename Body>
void with_activation_type(DType dtype, Body&& body) {
  TESSERA_CHECK(dtype == DType::kBF16 || dtype == DType::kF32, "activations are {}", dtype_name(dtype));
  if (dtype == DType::kBF16) {
    std::forward<Body>(body)(bf16{});
  } else {
    std::forward<Body>(body)(float{});
  }
}

}  // namespace tessera
