#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "model/trainable_model.h"

namespace tessera {

// Index of the first non-finite value.
std::optional<int64_t> first_not_finite(ConstTensorView values);

// The first parameter of which an element is not finite, "" if there is none. `values`: F32, the flat array
// of the layout, on the host or, from which it is copied piece by piece, on another device.
std::string first_not_finite(const ParameterLayout& layout, ConstTensorView values);

}  // namespace tessera
