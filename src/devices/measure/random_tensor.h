// Memory for benchmarks: random values, because zeros take less power and run faster.
#pragma once

#include <cstdint>

#include "base/memory.h"
#include "platform/thread_pool.h"
#include "tensor/device.h"
#include "tensor/tensor_view.h"

namespace tessera {

// values = scale * standard normal (a sequence of 65,521 values, a prime, repeated; it starts at `seed`).
// BF16 or F32.
void fill_random(TensorView tensor, uint64_t seed, float scale, ThreadPool& pool);

// A tensor that owns its memory, filled by fill_random().
class RandomTensor {
 public:
  RandomTensor(DType dtype, Shape shape, uint64_t seed, float scale, ThreadPool& pool);

  TensorView view() const { return view_; }

 private:
  PageBuffer memory_;
  TensorView view_;
};

// Copies of a tensor that together exceed the caches, so that the next one is always cold, like the weights
// of the next layer.
class ColdCopies {
 public:
  // At least min_bytes of copies, at least one, in the memory of `device`. Filled with fill_random() from
  // `seed` on, or zeros for scale 0.
  ColdCopies(DType dtype, Shape shape, int64_t min_bytes, float scale, ThreadPool& pool, uint64_t seed = 0,
             Device& device = host_device());

  // The next copy, cyclically.
  TensorView next() { return copy(next_index()); }
  int64_t next_index();
  TensorView copy(int64_t index) const;
  int64_t num_copies() const { return num_copies_; }

  static int64_t size_bytes(DType dtype, const Shape& shape, int64_t min_bytes);

 private:
  DType dtype_;
  Shape shape_;
  int64_t copy_bytes_;
  int64_t num_copies_;
  int64_t next_ = 0;
  DeviceBuffer memory_;
};

}  // namespace tessera
