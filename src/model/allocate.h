#pragma once

#include "tensor/arena.h"
#include "tensor/tensor_view.h"

namespace tessera {

// An uninitialised tensor in `arena`; has no memory if the arena only measures.
inline TensorView allocate_tensor(Arena& arena, DType dtype, const Shape& shape) {
  return {arena.allocate_bytes(shape.num_elements() * dtype_bytes(dtype)), dtype, shape, arena.device()};
}

// The first elements of flat scratch as a matrix.
inline TensorView matrix_in(TensorView flat, int64_t rows, int64_t columns) {
  return flat.rows(0, rows * columns).reshaped({rows, columns});
}

}  // namespace tessera
