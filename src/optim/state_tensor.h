// The values that training keeps per element of the weights: the float32 master weight and the tensors of the
// optimizer's state. Whoever stores, sends or counts them goes through the optimizer's list of tensors.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "base/divide_up.h"
#include "base/error.h"
#include "kernels/block_code/block_code.h"
#include "tensor/dtype.h"

namespace tessera {

// A parameter's shape as the optimizer sees it: a vector, unless it has rows.
struct ParameterShape {
  int64_t rows = 0;  // [rows, columns], as in Hugging Face's files
  int64_t columns = 0;
  bool is_hidden = false;  // a matrix that is neither embedding nor LM head

  bool is_matrix() const { return rows > 0; }
};

// The extent of a tensor of optimizer state: the values of it that belong to a parameter.
enum class StateExtent {
  kElements,        // one for each of its elements
  kHiddenElements,  // one for each element of hidden matrices, none for other parameters
  kOtherElements,   // the other way round
  kVectorElements,  // one for each element of a vector, none for matrices
  kRows,            // one for each row of a matrix, none for vectors
  kColumns,
};
inline constexpr size_t kNumStateExtents = 6;

// A tensor of optimizer state. Code that stores or moves values by elements takes the i-th value of a
// parameter for its i-th element's; the elements after the last value have none.
struct StateTensor {
  std::string_view name;  // as in torch.optim, and in checkpoints: "exp_avg"
  // In memory and in checkpoints: F32, BF16, or the codes of kernels/block_code (I8, U8), whose blocks begin
  // at multiples of kCodeBlock elements.
  DType dtype = DType::kF32;
  StateExtent extent = StateExtent::kElements;
  // A tensor of another optimizer, with a value for every element, that a checkpoint may hold in its place.
  // Its values are taken over or, for rows and columns, their means.
  std::string_view converted_from = {};
  // A checkpoint may lack it: its values are 0 then.
  bool may_lack = false;
};
// In a fixed order; the list belongs to the optimizer's type and outlives every object.
using StateTensors = std::span<const StateTensor>;
inline constexpr size_t kMaxStateTensors = 8;
// Kept beside the optimizer's tensors if gradients are quantized on the network: the errors to be sent along
// with the next gradients (shard/gradients/gradient_store.h).
inline constexpr StateTensor kGradientFeedback = {
    .name = "gradient_feedback", .dtype = DType::kBF16, .may_lack = true};
// The state of the outer optimizer, where nodes train on their own (shard/outer/outer_optimizer.h).
inline constexpr StateTensor kOuterMomentum = {.name = "outer_momentum", .may_lack = true};
inline constexpr std::array kTensorsOfNoOptimizer = {kGradientFeedback, kOuterMomentum};
// Whether a tensor of this name belongs to an optimizer.
inline bool is_of_optimizer(std::string_view name) {
  for (const StateTensor& tensor : kTensorsOfNoOptimizer) {
    if (tensor.name == name) return false;
  }
  return true;
}

// The values that belong to `count` elements of a parameter of this shape: to all of them, if it cannot be
// cut.
inline int64_t num_values(StateExtent extent, const ParameterShape& shape, int64_t count) {
  switch (extent) {
    case StateExtent::kElements:
      return count;
    case StateExtent::kHiddenElements:
      return shape.is_hidden ? count : 0;
    case StateExtent::kOtherElements:
      return shape.is_hidden ? 0 : count;
    case StateExtent::kVectorElements:
      return shape.is_matrix() ? 0 : count;
    case StateExtent::kRows:
      return shape.rows;
    case StateExtent::kColumns:
      return shape.columns;
  }
  TESSERA_CHECK(false, "extent {}", static_cast<int>(extent));
  return 0;
}
// Whether every tensor has a value for every element.
inline bool is_elementwise(StateTensors tensors) {
  for (const StateTensor& tensor : tensors) {
    if (tensor.extent != StateExtent::kElements) return false;
  }
  return true;
}
// Whether a parameter of this shape cannot be cut: its update needs all of it.
inline bool is_indivisible(StateTensors tensors, const ParameterShape& shape) {
  for (const StateTensor& tensor : tensors) {
    if (tensor.extent == StateExtent::kRows ||
        (tensor.extent == StateExtent::kHiddenElements && shape.is_hidden))
      return true;
  }
  return false;
}

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

// Selects the values: the master weight, or a tensor of the list. All are passed on in float32.
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
