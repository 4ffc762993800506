#pragma once

#include <cstdint>
#include <optional>

#include "tensor/tensor_view.h"

namespace tessera {

// Index of the first value that is not finite, of F32 or BF16 ones on the host or, from which they are copied
// piece by piece, on another device.
std::optional<int64_t> first_not_finite(ConstTensorView values);

}  // namespace tessera
