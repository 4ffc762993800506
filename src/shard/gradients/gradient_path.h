// Where the model writes the gradients of a group, and how their sums come to the ranks that own them.
#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "kernels/rank_sum/rank_sum.h"
#include "tensor/tensor_view.h"

namespace tessera {

class GradientPath {
 public:
  // Called for each group as soon as the sums of this rank's part are complete.
  using OnSum = std::function<void(int64_t group)>;

  virtual ~GradientPath() = default;

  // The model's update of the gradients of earlier passes. `is_ignored`: the sums are thrown away.
  virtual Update begin_pass(bool is_first, bool is_last, bool is_ignored) = 0;
  // Where the model writes the float32 gradients of a group, until close(). Groups follow the order of
  // model/parameter_access.h.
  virtual std::byte* open(int64_t group) = 0;
  virtual void close(int64_t /*group*/) {}
  // Call after the last group of a pass.
  virtual void finish_pass() {}
  // Memory of the host that open() returns parts of.
  virtual std::span<std::byte> opened_memory() const { return {}; }

  // The sums, and the index in them of an element of the flat array that this rank has them of.
  virtual ConstTensorView gradients() const = 0;
  virtual int64_t index(int64_t group, int64_t element) const = 0;
};

}  // namespace tessera
