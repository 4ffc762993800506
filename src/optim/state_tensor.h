// The values that training keeps per element of the weights: the float32 master weight and the tensors of the
// optimizer's state. Whoever stores, sends or counts them goes through the optimizer's list of tensors.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/error.h"
#include "tensor/dtype.h"

namespace tessera {

// A tensor of optimizer state with one value per element of the weights.
struct StateTensor {
  std::string_view name;      // as in torch.optim, and in checkpoints: "exp_avg"
  DType dtype = DType::kF32;  // F32 or BF16, in memory and in checkpoints
};
// In a fixed order; the list belongs to the optimizer's type and outlives every object.
using StateTensors = std::span<const StateTensor>;
inline constexpr size_t kMaxStateTensors = 8;

inline int64_t bytes_per_element(StateTensors tensors) {
  int64_t bytes = 0;
  for (const StateTensor& tensor : tensors) bytes += dtype_bytes(tensor.dtype);
  return bytes;
}

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
