#pragma once

#include "base/memory.h"
#include "tensor/tensor_view.h"

namespace tessera {

// An uninitialised tensor in `arena`; has no memory if the arena only measures.
inline TensorView allocate_tensor(Arena& arena, DType dtype, const Shape& shape) {
  return {arena.allocate_bytes(shape.num_elements() * dtype_bytes(dtype)), dtype, shape};
}

}  // namespace tessera
