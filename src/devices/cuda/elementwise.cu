#include "devices/cuda/elementwise.h"

#include <algorithm>

#include "devices/cuda/pieces.cuh"
#include "devices/cuda/scratch.h"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;

// Blocks of a flat operation and their threads: thread i of all takes piece i. The elements after the last
// piece are taken by the first threads as well.
__device__ int64_t global_thread() { return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; }

template <typename A, int kWidth>
__device__ void add_piece(A* x, const A* y) {
  float sum[kWidth], added[kWidth];
  load_piece(x, sum);
  load_piece(y, added);
#pragma unroll
  for (int k = 0; k < kWidth; ++k) sum[k] += added[k];
  store_piece(x, sum);
}

template <typename A, int kWidth>
__global__ void __launch_bounds__(kThreads) add_kernel(A* x, const A* y, int64_t count) {
  const int64_t i = global_thread(), pieces = count / kWidth;
  if (i < pieces) add_piece<A, kWidth>(x + i * kWidth, y + i * kWidth);
  if (i < count - pieces * kWidth) add_piece<A, 1>(x + pieces * kWidth + i, y + pieces * kWidth + i);
}

template <typename A, int kWidth>
__global__ void __launch_bounds__(kThreads) round_kernel(const float* from, A* to, int64_t count) {
  const int64_t i = global_thread(), pieces = count / kWidth;
  if (i < pieces) {
    float values[kWidth];
    load_piece(from + i * kWidth, values);
    store_piece(to + i * kWidth, values);
  }
  if (i < count - pieces * kWidth) store(to + pieces * kWidth + i, from[pieces * kWidth + i]);
}

// Block b takes kThreads pieces of row b / blocks_per_row.
template <typename A, int kWidth>
__global__ void __launch_bounds__(kThreads)
    add_bias_kernel(float* y, const A* bias, int64_t N, unsigned blocks_per_row) {
  const int64_t row = blockIdx.x / blocks_per_row;
  const int64_t n = (static_cast<int64_t>(blockIdx.x % blocks_per_row) * kThreads + threadIdx.x) * kWidth;
  if (n >= N) return;
  float values[kWidth], added[kWidth];
  load_piece(y + row * N + n, values);
  load_piece(bias + n, added);
#pragma unroll
  for (int k = 0; k < kWidth; ++k) values[k] += added[k];
  store_piece(y + row * N + n, values);
}

// Rows of one partial sum of a bias gradient.
int64_t rows_per_partial(int64_t T) { return std::max(kLeastBiasRows, divide_up(T, kMostBiasPartials)); }

// partials [row blocks, N]. A block is 32 lanes, each with a piece of the columns, times kRowLanes rows.
constexpr int kRowLanes = 8;
template <typename A, int kWidth>
__global__ void __launch_bounds__(32 * kRowLanes)
    column_sums_kernel(const A* x, int64_t T, int64_t N, int64_t rows_per_block, float* partials) {
  __shared__ float sums[kRowLanes][32 * kWidth];
  const int lane = static_cast<int>(threadIdx.x % 32), row_lane = static_cast<int>(threadIdx.x / 32);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * 32 * kWidth, n = first + lane * kWidth;
  const int64_t begin = static_cast<int64_t>(blockIdx.y) * rows_per_block;
  const int64_t end = begin + rows_per_block < T ? begin + rows_per_block : T;
  float sum[kWidth] = {};
  if (n < N) {
#pragma unroll 4
    for (int64_t t = begin + row_lane; t < end; t += kRowLanes) {
      float values[kWidth];
      load_piece(x + t * N + n, values);
#pragma unroll
      for (int k = 0; k < kWidth; ++k) sum[k] += values[k];
    }
  }
#pragma unroll
  for (int k = 0; k < kWidth; ++k) sums[row_lane][lane * kWidth + k] = sum[k];
  __syncthreads();
  for (int c = static_cast<int>(threadIdx.x); c < 32 * kWidth; c += 32 * kRowLanes) {
    if (first + c >= N) continue;
    float total = 0;
#pragma unroll
    for (int k = 0; k < kRowLanes; ++k) total += sums[k][c];
    partials[static_cast<int64_t>(blockIdx.y) * N + first + c] = total;
  }
}

// A block is 32 columns times 32 lanes that take every 32nd row; the lanes are added in order.
__global__ void __launch_bounds__(1024)
    sum_rows_kernel(const float* x, int64_t R, int64_t D, float* sum, bool adds) {
  __shared__ float sums[32][33];
  const int column = static_cast<int>(threadIdx.x % 32), lane = static_cast<int>(threadIdx.x / 32);
  const int64_t d = static_cast<int64_t>(blockIdx.x) * 32 + column;
  float of_lane = 0;
  if (d < D) {
#pragma unroll 4
    for (int64_t r = lane; r < R; r += 32) of_lane += x[r * D + d];
  }
  sums[lane][column] = of_lane;
  __syncthreads();
  if (lane != 0 || d >= D) return;
  float total = 0;
#pragma unroll
  for (int k = 0; k < 32; ++k) total += sums[k][column];
  sum[d] = adds ? sum[d] + total : total;
}

// Elements of a block of sum_of_squares, until there are kMostSquareBlocks blocks.
constexpr int64_t kLeastSquares = 16 * 1024;
int64_t square_blocks(int64_t count) {
  return std::clamp<int64_t>(divide_up(count, kLeastSquares), 1, kMostSquareBlocks);
}

template <int kWidth>
__global__ void __launch_bounds__(kThreads) squares_kernel(const float* x, int64_t count, double* partials) {
  __shared__ double scratch[32];
  const int64_t pieces = count / kWidth, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  double sums[kWidth] = {};
#pragma unroll 4
  for (int64_t i = global_thread(); i < pieces; i += step) {
    float values[kWidth];
    load_piece(x + i * kWidth, values);
#pragma unroll
    for (int k = 0; k < kWidth; ++k) {
      sums[k] += static_cast<double>(values[k]) * static_cast<double>(values[k]);
    }
  }
  const int64_t rest = pieces * kWidth + global_thread();
  if (rest < count) sums[0] += static_cast<double>(x[rest]) * static_cast<double>(x[rest]);
  double sum = sums[0];
#pragma unroll
  for (int k = 1; k < kWidth; ++k) sum += sums[k];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) partials[blockIdx.x] = sum;
}

__global__ void __launch_bounds__(kThreads)
    total_kernel(const double* partials, int64_t count, double* result) {
  __shared__ double scratch[32];
  double sum = 0;
  for (int64_t i = threadIdx.x; i < count; i += blockDim.x) sum += partials[i];
  sum = block_sum(sum, scratch);
  if (threadIdx.x == 0) *result = sum;
}

// Enough threads for all pieces, and for the elements after them.
unsigned flat_blocks(int64_t count, int width) {
  return num_blocks(std::max(divide_up(count, width), count % width), kThreads);
}

}  // namespace

template <typename A>
void add(A* x, const A* y, int64_t count, CudaStream stream) {
  const bool in_pieces = has_pieces<A>(0, {x, y});
  launch(in_pieces ? add_kernel<A, kVector<A>> : add_kernel<A, 1>,
         flat_blocks(count, in_pieces ? kVector<A> : 1), kThreads, 0, stream, x, y, count);
}

template <typename A>
void round_to(const float* from, A* to, int64_t count, CudaStream stream) {
  const bool in_pieces = has_pieces<A>(0, {from, to});
  launch(in_pieces ? round_kernel<A, kVector<A>> : round_kernel<A, 1>,
         flat_blocks(count, in_pieces ? kVector<A> : 1), kThreads, 0, stream, from, to, count);
}

template <typename A>
void add_bias(float* y_TN, const A* b_N, int64_t T, int64_t N, CudaStream stream) {
  const bool in_pieces = has_pieces<A>(N, {y_TN, b_N});
  const unsigned blocks_per_row = num_blocks(N, kThreads * (in_pieces ? kVector<A> : 1));
  launch(in_pieces ? add_bias_kernel<A, kVector<A>> : add_bias_kernel<A, 1>,
         num_blocks(T * blocks_per_row, 1), kThreads, 0, stream, y_TN, b_N, N, blocks_per_row);
}

template <typename A>
void bias_gradient(const A* dy_TN, int64_t T, int64_t N, float* db_N, Update update, void* scratch,
                   CudaStream stream) {
  auto* const partials = static_cast<float*>(scratch);
  const bool in_pieces = has_pieces<A>(N, {dy_TN});
  const int64_t rows_per_block = rows_per_partial(T);
  const dim3 grid(num_blocks(N, 32 * (in_pieces ? kVector<A> : 1)), num_blocks(T, rows_per_block));
  launch(in_pieces ? column_sums_kernel<A, kVector<A>> : column_sums_kernel<A, 1>, grid, 32 * kRowLanes, 0,
         stream, dy_TN, T, N, rows_per_block, partials);
  sum_rows(partials, divide_up(T, rows_per_block), N, db_N, update, stream);
}

void sum_rows(const float* x_RD, int64_t R, int64_t D, float* sum_D, Update update, CudaStream stream) {
  launch(sum_rows_kernel, num_blocks(D, 32), 1024, 0, stream, x_RD, R, D, sum_D, update == Update::kAdd);
}

void sum_of_squares(const float* x, int64_t count, double* result, void* scratch, CudaStream stream) {
  auto* const partials = static_cast<double*>(scratch);
  const int64_t blocks = square_blocks(count);
  launch(has_pieces<float>(0, {x}) ? squares_kernel<4> : squares_kernel<1>, num_blocks(blocks, 1), kThreads,
         0, stream, x, count, partials);
  launch(total_kernel, 1, kThreads, 0, stream, partials, blocks, result);
}

#define TESSERA_INSTANTIATE(A)                                               \
  template void add<A>(A*, const A*, int64_t, CudaStream);                   \
  template void round_to<A>(const float*, A*, int64_t, CudaStream);          \
  template void add_bias<A>(float*, const A*, int64_t, int64_t, CudaStream); \
  template void bias_gradient<A>(const A*, int64_t, int64_t, float*, Update, void*, CudaStream)
TESSERA_INSTANTIATE(bf16);
TESSERA_INSTANTIATE(float);
#undef TESSERA_INSTANTIATE

}  // namespace tessera::cuda
