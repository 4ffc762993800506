// kernels/elementwise on the device, and sums over the rows of a matrix.
#pragma once

#include <cstdint>

#include "devices/cuda/cuda_stream.h"
#include "kernels/update.h"

namespace tessera::cuda {

// x += y, rounded once; `count` elements.
template <typename A>
void add(A* x, const A* y, int64_t count, CudaStream stream);

// to = from, rounded.
template <typename A>
void round_to(const float* from, A* to, int64_t count, CudaStream stream);

// y_TN += b_N.
template <typename A>
void add_bias(float* y_TN, const A* b_N, int64_t T, int64_t N, CudaStream stream);

// db_N = or += sum over rows of dy_TN, through partial sums in scratch (scratch.h).
template <typename A>
void bias_gradient(const A* dy_TN, int64_t T, int64_t N, float* db_N, Update update, void* scratch,
                   CudaStream stream);

// sum_D = or += the sum of the rows of x_RD, in an order that depends on R alone.
void sum_rows(const float* x_RD, int64_t R, int64_t D, float* sum_D, Update update, CudaStream stream);

// *result = the sum of x_i^2, squares and sums in double, in an order that depends on the count and the
// alignment of x to 16 bytes alone. Not finite if an element is not. `result` is in device memory.
void sum_of_squares(const float* x, int64_t count, double* result, void* scratch, CudaStream stream);

}  // namespace tessera::cuda
