// The values that training keeps per element of the weights: the float32 master weight and the tensors of the
// optimizer's state. Whoever stores, sends or counts them goes through the optimizer's list of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/divide_up.h"
#include "base/error.h"
#include "kernels/block_code/block_code.h"
#include "tensor/dtype.h"

namespace tessera {

// A tensor of optimizer state with one value per element of the weights.
struct StateTensor {
  std::string_view name;  // as in torch.optim, and in checkpoints: "exp_avg"
  // In memory and in checkpoints: F32, BF16, or the codes of kernels/block_code (I8, U8), whose blocks begin
  // at multiples of kCodeBlock elements.
  DType dtype = DType::kF32;
};
// In a fixed order; the list belongs to the optimizer's type and outlives every object.
using StateTensors = std::span<const StateTensor>;
inline constexpr size_t kMaxStateTensors = 8;

// Bytes of the first `num_elements` elements of a tensor: its size, and the offset of an element at the
// beginning of a block.
inline int64_t state_bytes(DType dtype, int64_t num_elements) {
  return is_block_code(dtype) ? divide_up(num_elements, kCodeBlock) * kCodeBlockBytes
                              : num_elements * dtype_bytes(dtype);
}
inline int64_t state_bytes(StateTensors tensors, int64_t num_elements) {
  int64_t bytes = 0;
  for (const StateTensor& tensor : tensors) bytes += state_bytes(tensor.dtype, num_elements);
  return bytes;
}
// Consecutive elements that are only stored together.
inline int64_t state_block(DType dtype) { return is_block_code(dtype) ? kCodeBlock : 1; }

// Which of the values: the master weight, or a tensor of the list. All are exchanged in float32.
enum class StateKind : size_t { kMaster };

inline constexpr StateKind state_kind(size_t tensor) { return StateKind{1 + tensor}; }
inline size_t tensor_index(StateKind kind) {
  TESSERA_CHECK(kind != StateKind::kMaster);
  return static_cast<size_t>(kind) - 1;
}
// Calls body(kind) for the master weight and every tensor of a list of `num_tensors`.
template <typename Body>
void for_each_state_kind(size_t num_tensors, const Body& body) {
  for (size_t kind = 0; kind <= num_tensors; ++kind) body(StateKind{kind});
}

}  // namespace tessera
