// A model's access to parameters that are not all in memory: it opens each parameter group (Parameter::group)
// before using it and closes it afterwards. In between, the implementation fetches weights and hands over
// gradients. All of this is memory of the model's device.
//
// The order of calls depends only on the model, never on the batch:
//   forward:   weights 0, 1, ..., n, n + 1 (n layers), each closed before the next is opened, except n + 1;
//              tied embeddings: 0 is opened again together with n + 1
//   backward:  gradients of n + 1 (and 0 if tied) are opened, the weights of the head closed, the gradients
//              of n + 1 closed; then for every layer, last first: weights, gradients opened; both closed;
//              then the gradients of 0 (opened now unless tied) closed
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "tensor/device.h"

namespace tessera {

enum class WeightUse { kForward, kBackward };

// One of `count` shares of a group's packed forms.
struct PackShare {
  int64_t index = 0;
  int64_t count = 1;
};

class ParameterAccess {
 public:
  virtual ~ParameterAccess() = default;

  virtual Device& device() const { return host_device(); }
  // The group's elements, starting with its first, in the model's dtype; valid until closed.
  virtual std::byte* open_weights(int64_t group, WeightUse use) = 0;
  virtual void close_weights(int64_t group) = 0;
  // Called by TrainableModel::reserve(): reserves memory for the packed forms of every group's matrices.
  virtual void reserve_packed_forms(std::span<const int64_t> bytes_by_group) = 0;
  // The packed forms of a group, made with pack_group() and complete while the group is open; nullptr:
  // none are kept. Does not change until they are reserved again.
  virtual std::byte* packed_forms(int64_t group) = 0;
  // Where the group's float32 gradients go. Alignment gaps are left as they are.
  virtual std::byte* open_gradients(int64_t group) = 0;
  // Called when the gradients of this pass are complete.
  virtual void close_gradients(int64_t group) = 0;
};

}  // namespace tessera
