#include "devices/cuda/rows.h"

#include <algorithm>

#include "devices/cuda/pieces.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 128;

// A block per row and kThreads * kWidth columns.
template <int kWidth, typename A>
__global__ void copy_some(const A* from, int64_t from_D, const int32_t* rows, int64_t width, A* to, int64_t to_D) {
  const int64_t i = blockIdx.x, d = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * kWidth;
  if (d >= width) return;
  const int32_t row = rows[i];
  float values[kWidth] = {};
  if (row >= 0) load_piece<kWidth>(from + row * from_D + d, values);
  store_piece<kWidth>(to + i * to_D + d, values);
}

template <typename A>
__global__ void add_tokens(const A* dx_TD, const int32_t* unique, const int32_t* starts, const int32_t* order, int64_t D,
                           float* dtable_VD) {
  const int64_t u = blockIdx.x, d = static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (d >= D) return;
  float* const to = dtable_VD + unique[u] * D + d;
  float sum = *to;
#pragma unroll 8
  for (int32_t i = starts[u]; i < starts[u + 1]; ++i) sum += load(dx_TD[order[i] * D + d]);
  *to = sum;
}

}  // namespace

template <typename A>
void copy_columns(const A* from, int64_t from_D, const int32_t* rows, int64_t count, int64_t width, A* to, int64_t to_D,
                  CudaStream stream) {
  with_width<A>(from_D % kVector<A> == 0 && to_D % kVector<A> == 0 ? width : 1, {from, to}, [&]<int kWidth>() {
    launch(copy_some<kWidth, A>,
           dim3(static_cast<unsigned>(count), static_cast<unsigned>(divide_up(width, kThreads * kWidth))), dim3(kThreads),
           0, stream, from, from_D, rows, width, to, to_D);
  });
}

template <typename A>
void copy_rows(const A* from, const int32_t* rows, int64_t count, int64_t D, A* to, CudaStream stream) {
  copy_columns(from, D, rows, count, D, to, D, stream);
}

TokensById tokens_by_id(std::span<const int32_t> ids, int32_t padding_id) {
  TokensById by_id;
  for (size_t t = 0; t < ids.size(); ++t) {
    if (ids[t] != padding_id) by_id.order.push_back(static_cast<int32_t>(t));
  }
  std::stable_sort(by_id.order.begin(), by_id.order.end(), [&](int32_t a, int32_t b) {
    return ids[static_cast<size_t>(a)] < ids[static_cast<size_t>(b)];
  });
  for (size_t i = 0; i < by_id.order.size(); ++i) {
    const int32_t id = ids[static_cast<size_t>(by_id.order[i])];
    if (!by_id.unique.empty() && by_id.unique.back() == id) continue;
    by_id.unique.push_back(id);
    by_id.starts.push_back(static_cast<int32_t>(i));
  }
  by_id.starts.push_back(static_cast<int32_t>(by_id.order.size()));
  return by_id;
}

template <typename A>
void embedding_backward(const A* dx_TD, const int32_t* unique, const int32_t* starts, const int32_t* order,
                        int64_t num_unique, int64_t D, float* dtable_VD, CudaStream stream) {
  launch(add_tokens<A>, dim3(static_cast<unsigned>(num_unique), static_cast<unsigned>(divide_up(D, kThreads))),
         dim3(kThreads), 0, stream, dx_TD, unique, starts, order, D, dtable_VD);
}

#define TESSERA_INSTANTIATE(A)                                                                                       \
  template void copy_columns(const A*, int64_t, const int32_t*, int64_t, int64_t, A*, int64_t, CudaStream);          \
  template void copy_rows(const A*, const int32_t*, int64_t, int64_t, A*, CudaStream);                               \
  template void embedding_backward(const A*, const int32_t*, const int32_t*, const int32_t*, int64_t, int64_t, float*, \
                                   CudaStream);
TESSERA_INSTANTIATE(bf16)
TESSERA_INSTANTIATE(float)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::cuda
