// Elementwise operations on flat arrays: the residual sum, rounding, zeroing, and the sum of squares for the
// gradient norm.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "platform/thread_pool.h"
#include "tensor/tensor_view.h"

namespace tessera {

// x += y; BF16 or F32, same dtype and number of elements; the sum is rounded once.
void add(TensorView x, ConstTensorView y, ThreadPool& pool);

// y = factor x; BF16 or F32, same dtype and number of elements, rounded once. y may be x.
void scale(ConstTensorView x, float factor, TensorView y, ThreadPool& pool);

// x = c tanh(x / c), BF16 or F32, and dx *= 1 - (y / c)^2 with y (F32) the result: the soft cap c of logits,
// and its derivative. tanh is within 3 units in the last place; results are rounded once.
void soft_cap(TensorView x, float cap, ThreadPool& pool);
void soft_cap_backward(ConstTensorView y, float cap, TensorView dx, ThreadPool& pool);

// to = from, F32 rounded to the dtype of `to`, BF16 or F32; same number of elements. When rounding to BF16 a
// subnormal number may become zero.
void round_to(ConstTensorView from, TensorView to, ThreadPool& pool);

// x = 0 (all bits), any dtype.
void zero(TensorView x, ThreadPool& pool);

// Bytes of scratch for sum_of_squares.
int64_t sum_of_squares_scratch_bytes(int64_t count);

// Sum of x_i^2 of an F32 array, squares and sums in double: sums blocks of a fixed number of elements and
// adds the blocks in order, so the result does not depend on the number of threads. Not finite if an element
// is not.
double sum_of_squares(std::span<const float> x, std::span<std::byte> scratch, ThreadPool& pool);

}  // namespace tessera
