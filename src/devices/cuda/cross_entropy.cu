#include "devices/cuda/cross_entropy.h"

#include "devices/cuda/pieces.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 512;
constexpr int kSumThreads = 1024;
constexpr float kInfinity = __builtin_huge_valf();

// kernels/cross_entropy/cross_entropy.h, SoftmaxRow. A max of NaN: the row has no softmax.
struct RowState {
  double sum_exp;  // of exp(x - max)
  double sum;      // of x; only with label smoothing
  float max;
  float target_logit;
};
static_assert(sizeof(RowState) == 24);

// Adds columns [0, C) of a row to `state`, which all threads of the block get.
template <int kWidth>
__device__ RowState add_columns(const float* row, int64_t C, int64_t target, bool smooths, RowState state) {
  __shared__ double sums[32];
  __shared__ float maxima[32];
  float max = -kInfinity, sum_exp = 0, sum = 0;
  bool is_sound = true;
  for (int64_t c = threadIdx.x * kWidth; c < C; c += kThreads * kWidth) {
    float x[kWidth];
    load_piece<kWidth>(row + c, x);
    float here = x[0];
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      here = fmaxf(here, x[i]);
      is_sound = is_sound && x[i] < kInfinity;  // neither infinity nor NaN
      if (smooths) sum += x[i];
    }
    if (here > max) {
      sum_exp *= expf(max - here);
      max = here;
    }
    if (max == -kInfinity) continue;
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum_exp += expf(x[i] - max);
  }
  // The largest of the block and of what came before.
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const float of_warp = warp_max(max);
  __syncthreads();
  if (lane == 0) maxima[warp] = of_warp;
  __syncthreads();
  const float of_block = warp_max(lane < kThreads / 32 ? maxima[lane] : -kInfinity);
  const float all = fmaxf(of_block, state.max);  // of numbers: a NaN is seen to below
  const bool has_any = all > -kInfinity;
  const double mine = max > -kInfinity ? static_cast<double>(sum_exp) * exp(static_cast<double>(max) - all) : 0;
  const double total = block_sum(mine, sums);
  const double unsound = block_sum(is_sound ? 0.0 : 1.0, sums);
  if (smooths) state.sum += block_sum(static_cast<double>(sum), sums);
  if (has_any) state.sum_exp = state.sum_exp * exp(static_cast<double>(state.max) - all) + total;
  if (state.max == state.max) state.max = unsound > 0 ? __builtin_nanf("") : all;
  if (0 <= target && target < C) state.target_logit = row[target];
  return state;
}

__device__ inline RowState empty_row() { return {0, 0, -kInfinity, 0}; }

__device__ inline double loss_of(const RowState& state, double smoothing, int64_t V) {
  // No number, or only -infinity.
  if (!(state.max > -kInfinity)) return __builtin_nan("");
  const double lse = static_cast<double>(state.max) + log(state.sum_exp);
  const double loss = (1 - smoothing) * (lse - state.target_logit);
  return smoothing > 0 ? loss + smoothing * (lse - state.sum / static_cast<double>(V)) : loss;
}

// dlogits of columns [0, C) of a row whose target is column `target` of them; 0 if it is ignored.
template <int kWidth, typename A>
__device__ void write_gradient(const float* row, int64_t C, int64_t target, bool is_ignored, const RowState& state,
                               float smoothing, int64_t V, float grad_scale, A* to) {
  const bool is_sound = state.max > -kInfinity;
  const float factor = is_sound ? static_cast<float>(1 / state.sum_exp) : __builtin_nanf("");
  const float smooth = smoothing / static_cast<float>(V);
  for (int64_t c = threadIdx.x * kWidth; c < C; c += kThreads * kWidth) {
    float x[kWidth];
    load_piece<kWidth>(row + c, x);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      float gradient = expf(x[i] - state.max) * factor - smooth;
      if (c + i == target) gradient -= 1 - smoothing;
      x[i] = is_ignored ? 0.0f : grad_scale * gradient;
    }
    if constexpr (kWidth == 4 && sizeof(A) == sizeof(bf16)) {
      *reinterpret_cast<uint2*>(to + c) = make_uint2(pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]));
    } else {
      store_piece<kWidth>(to + c, x);
    }
  }
}

template <int kWidth, typename A>
__global__ void whole_rows(const float* logits_RV, LossRows rows, float grad_scale, A* dlogits_RV, double* losses) {
  const int64_t r = blockIdx.x, at = r * rows.V;
  const int32_t target = rows.targets[r];
  const bool is_ignored = target == rows.ignored;
  RowState state = empty_row();
  if (!is_ignored) {
    state = add_columns<kWidth>(logits_RV + at, rows.V, target, rows.label_smoothing > 0, state);
  }
  if (threadIdx.x == 0) losses[r] = is_ignored ? 0 : loss_of(state, rows.label_smoothing, rows.V);
  if (dlogits_RV == nullptr) return;
  __syncthreads();  // the target's logit has been read
  write_gradient<kWidth>(logits_RV + at, rows.V, target, is_ignored, state, rows.label_smoothing, rows.V, grad_scale,
                         dlogits_RV + at);
}

template <int kWidth>
__global__ void add_chunk(const float* logits_RC, int64_t first_column, int64_t C, LossRows rows, RowState* states) {
  const int64_t r = blockIdx.x;
  const RowState before = first_column == 0 ? empty_row() : states[r];
  const RowState state = add_columns<kWidth>(logits_RC + r * C, C, rows.targets[r] - first_column,
                                             rows.label_smoothing > 0, before);
  __syncthreads();  // all have read the state before
  if (threadIdx.x == 0) states[r] = state;
}

__global__ void losses_of_rows(const RowState* states, LossRows rows, double* losses) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (r >= rows.R) return;
  losses[r] = rows.targets[r] == rows.ignored ? 0 : loss_of(states[r], rows.label_smoothing, rows.V);
}

template <int kWidth, typename A>
__global__ void chunk_gradient(const float* logits_RC, int64_t first_column, int64_t C, LossRows rows,
                               const RowState* states, float grad_scale, A* dlogits_RC) {
  const int64_t r = blockIdx.x;
  write_gradient<kWidth>(logits_RC + r * C, C, rows.targets[r] - first_column, rows.targets[r] == rows.ignored, states[r],
                         rows.label_smoothing, rows.V, grad_scale, dlogits_RC + r * C);
}

__global__ void sum_all(const double* values, int64_t count, double* sum) {
  __shared__ double scratch[32];
  double mine = 0;
  for (int64_t i = threadIdx.x; i < count; i += kSumThreads) mine += values[i];
  mine = block_sum(mine, scratch);
  if (threadIdx.x == 0) *sum = mine;
}

dim3 blocks(int64_t count) { return dim3(static_cast<unsigned>(count)); }

}  // namespace

template <typename A>
void cross_entropy(const float* logits_RV, const LossRows& rows, float grad_scale, A* dlogits_RV, double* losses,
                   CudaStream stream) {
  with_width<float>(rows.V, {logits_RV, dlogits_RV}, [&]<int kWidth>() {
    launch(whole_rows<kWidth, A>, blocks(rows.R), dim3(kThreads), 0, stream, logits_RV, rows, grad_scale, dlogits_RV,
           losses);
  });
}

void cross_entropy_add_chunk(const float* logits_RC, int64_t first_column, int64_t C, const LossRows& rows, void* states,
                             CudaStream stream) {
  with_width<float>(C, {logits_RC}, [&]<int kWidth>() {
    launch(add_chunk<kWidth>, blocks(rows.R), dim3(kThreads), 0, stream, logits_RC, first_column, C, rows,
           static_cast<RowState*>(states));
  });
}

void cross_entropy_losses(const void* states, const LossRows& rows, double* losses, CudaStream stream) {
  launch(losses_of_rows, blocks(divide_up(rows.R, kThreads)), dim3(kThreads), 0, stream,
         static_cast<const RowState*>(states), rows, losses);
}

template <typename A>
void cross_entropy_chunk_gradient(const float* logits_RC, int64_t first_column, int64_t C, const LossRows& rows,
                                  const void* states, float grad_scale, A* dlogits_RC, CudaStream stream) {
  with_width<float>(C, {logits_RC, dlogits_RC}, [&]<int kWidth>() {
    launch(chunk_gradient<kWidth, A>, blocks(rows.R), dim3(kThreads), 0, stream, logits_RC, first_column, C, rows,
           static_cast<const RowState*>(states), grad_scale, dlogits_RC);
  });
}

void sum_in_order(const double* values, int64_t count, double* sum, CudaStream stream) {
  launch(sum_all, dim3(1), dim3(kSumThreads), 0, stream, values, count, sum);
}

template void cross_entropy(const float*, const LossRows&, float, bf16*, double*, CudaStream);
template void cross_entropy(const float*, const LossRows&, float, float*, double*, CudaStream);
template void cross_entropy_chunk_gradient(const float*, int64_t, int64_t, const LossRows&, const void*, float, bf16*,
                                           CudaStream);
template void cross_entropy_chunk_gradient(const float*, int64_t, int64_t, const LossRows&, const void*, float, float*,
                                           CudaStream);

}  // namespace tessera::cuda
