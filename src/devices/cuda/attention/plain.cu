#include "devices/cuda/attention/plain.h"

#include "devices/cuda/launch.cuh"
#include "devices/cuda/numbers.cuh"

namespace tessera::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kPerLane = kMaxHeadDim / 32;  // elements of a head

// The shape as the kernels see it.
struct HeadLayout {
  int64_t H, G, Q;  // Q: width of a row of qkv
  int64_t T;
  int window;
  float scale;

  HeadLayout(const AttentionShape& shape, int64_t tokens)
      : H(shape.num_heads),
        G(shape.num_key_value_heads),
        Q(shape.qkv_width()),
        T(tokens),
        window(static_cast<int>(shape.sliding_window)),
        scale(shape.scale) {}
};

// A warp's row of E elements: lane l has elements l, l + 32, ...
struct LaneRow {
  float of[kPerLane] = {};

  template <typename A>
  __device__ void load_from(const A* row, int64_t E) {
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) of[k] = lane() + 32 * k < E ? load(row[lane() + 32 * k]) : 0.0f;
  }
  // += factor row.
  template <typename A>
  __device__ void add(float factor, const A* row, int64_t E) {
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      if (lane() + 32 * k < E) of[k] += factor * load(row[lane() + 32 * k]);
    }
  }
  template <typename A>
  __device__ void store_to(float factor, A* row, int64_t E) const {
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) {
      if (lane() + 32 * k < E) store(row + lane() + 32 * k, factor * of[k]);
    }
  }
  __device__ static int lane() { return threadIdx.x % 32; }
};

// x . y, by one lane.
template <typename X, typename Y>
__device__ float dot(const X* x, const Y* y, int64_t E) {
  float sum = 0;
  for (int64_t e = 0; e < E; ++e) sum += load(x[e]) * load(y[e]);
  return sum;
}

// Keys are taken 32 at a time; each lane has the score of one. `key(s)` and `value(s)` are rows.
template <typename A, typename Key, typename Value>
__device__ void attend(const A* query, int64_t E, float scale, int64_t first, int64_t last, const Key& key,
                       const Value& value, A* o, float* lse) {
  const int lane = threadIdx.x % 32;
  LaneRow sum_o;
  float max = -INFINITY, sum = 0;
  for (int64_t begin = first; begin <= last; begin += 32) {
    const int64_t s = begin + lane;
    const float score = s <= last ? scale * dot(query, key(s), E) : -INFINITY;
    const float new_max = fmaxf(max, warp_max(score)), shrink = expf(max - new_max);
    const float p = expf(score - new_max);
    sum = sum * shrink + warp_sum(p);
    max = new_max;
#pragma unroll
    for (int k = 0; k < kPerLane; ++k) sum_o.of[k] *= shrink;
    const int count = last - begin < 31 ? static_cast<int>(last - begin) + 1 : 32;
    for (int j = 0; j < count; ++j) sum_o.add(__shfl_sync(0xFFFFFFFFu, p, j), value(begin + j), E);
  }
  sum_o.store_to(1.0f / sum, o, E);
  if (lse != nullptr && lane == 0) *lse = max + logf(sum);
}

// A warp per query and head: blockIdx.x the block of rows, y the head, z the rows of the block in fours.
template <typename A>
__global__ void plain_forward(const A* qkv_TQ, HeadLayout layout, int64_t E, const AttentionBlock* blocks,
                              A* o_THE, float* lse_HT) {
  const AttentionBlock block = blocks[blockIdx.x];
  const int64_t head = blockIdx.y, group = head / (layout.H / layout.G);
  const int row = block.first_row + static_cast<int>(blockIdx.z * kWarps + threadIdx.x / 32);
  if (row >= block.end - block.begin) return;
  const int64_t t = block.begin + row, oldest = layout.window == 0 ? 0 : max(0, row - layout.window + 1);
  const A* const keys = qkv_TQ + (layout.H + group) * E;
  const A* const values = keys + layout.G * E;
  const auto key = [&](int64_t s) { return keys + (block.begin + s) * layout.Q; };
  const auto value = [&](int64_t s) { return values + (block.begin + s) * layout.Q; };
  attend(qkv_TQ + t * layout.Q + head * E, E, layout.scale, oldest, static_cast<int64_t>(row), key, value,
         o_THE + (t * layout.H + head) * E, lse_HT == nullptr ? nullptr : lse_HT + head * layout.T + t);
}

template <typename A>
__global__ void delta_rows(const A* do_THE, const A* o_THE, int64_t H, int64_t E, int64_t T,
                           float* delta_HT) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  if (index >= T * H) return;
  const int lane = threadIdx.x % 32;
  float sum = 0;
  for (int64_t e = lane; e < E; e += 32) sum += load(do_THE[index * E + e]) * load(o_THE[index * E + e]);
  sum = warp_sum(sum);
  if (lane == 0) delta_HT[index % H * T + index / H] = sum;
}

// dq: as plain_forward.
template <typename A>
__global__ void plain_backward_q(const A* do_THE, const A* qkv_TQ, const float* lse_HT, const float* delta_HT,
                                 HeadLayout layout, int64_t E, const AttentionBlock* blocks, A* dqkv_TQ) {
  const AttentionBlock block = blocks[blockIdx.x];
  const int64_t head = blockIdx.y, group = head / (layout.H / layout.G);
  const int row = block.first_row + static_cast<int>(blockIdx.z * kWarps + threadIdx.x / 32),
            lane = threadIdx.x % 32;
  if (row >= block.end - block.begin) return;
  const int64_t t = block.begin + row, oldest = layout.window == 0 ? 0 : max(0, row - layout.window + 1);
  const A* const query = qkv_TQ + t * layout.Q + head * E;
  const A* const gradient = do_THE + (t * layout.H + head) * E;
  const float lse = lse_HT[head * layout.T + t], delta = delta_HT[head * layout.T + t];
  LaneRow dq;
  for (int64_t begin = oldest; begin <= row; begin += 32) {
    const A* const keys = qkv_TQ + (block.begin + begin) * layout.Q + (layout.H + group) * E;
    float ds = 0;
    if (begin + lane <= row) {
      const A* const key = keys + lane * layout.Q;
      const float p = expf(layout.scale * dot(query, key, E) - lse);
      ds = p * (dot(gradient, key + layout.G * E, E) - delta);
    }
    const int count = row - begin < 31 ? static_cast<int>(row - begin) + 1 : 32;
    for (int j = 0; j < count; ++j) dq.add(__shfl_sync(0xFFFFFFFFu, ds, j), keys + j * layout.Q, E);
  }
  dq.store_to(layout.scale, dqkv_TQ + t * layout.Q + head * E, E);
}

// dk and dv: a warp per key and key-value head, over all its query heads and the queries that see it, in
// order.
template <typename A>
__global__ void plain_backward_kv(const A* do_THE, const A* qkv_TQ, const float* lse_HT,
                                  const float* delta_HT, HeadLayout layout, int64_t E,
                                  const AttentionBlock* blocks, A* dqkv_TQ) {
  const AttentionBlock block = blocks[blockIdx.x];
  const int64_t group = blockIdx.y, per_group = layout.H / layout.G;
  const int row = block.first_row + static_cast<int>(blockIdx.z * kWarps + threadIdx.x / 32),
            lane = threadIdx.x % 32;
  const int length = block.end - block.begin;
  if (row >= length) return;
  const A* const key = qkv_TQ + (block.begin + row) * layout.Q + (layout.H + group) * E;
  const A* const value = key + layout.G * E;
  const int last = layout.window == 0 ? length - 1 : min(length - 1, row + layout.window - 1);
  LaneRow dk, dv;
  for (int64_t head = group * per_group; head < (group + 1) * per_group; ++head) {
    for (int begin = row; begin <= last; begin += 32) {
      const int64_t first = block.begin + begin;
      const A* const queries = qkv_TQ + first * layout.Q + head * E;
      const A* const gradients = do_THE + (first * layout.H + head) * E;
      float p = 0, ds = 0;
      if (begin + lane <= last) {
        const int64_t at = head * layout.T + first + lane;
        p = expf(layout.scale * dot(queries + lane * layout.Q, key, E) - lse_HT[at]);
        ds = p * (dot(gradients + lane * layout.H * E, value, E) - delta_HT[at]);
      }
      const int count = min(32, last - begin + 1);
      for (int j = 0; j < count; ++j) {
        dk.add(__shfl_sync(0xFFFFFFFFu, ds, j), queries + j * layout.Q, E);
        dv.add(__shfl_sync(0xFFFFFFFFu, p, j), gradients + j * layout.H * E, E);
      }
    }
  }
  A* const to = dqkv_TQ + (block.begin + row) * layout.Q + (layout.H + group) * E;
  dk.store_to(layout.scale, to, E);
  dv.store_to(1.0f, to + layout.G * E, E);
}

template <typename A>
__global__ void append_to_cache(const A* qkv_TQ, int64_t H, int64_t width, int64_t Q, int64_t cache_length,
                                A* k_cache, A* v_cache) {
  const int64_t t = blockIdx.x;
  for (int64_t e = threadIdx.x; e < width; e += blockDim.x) {
    k_cache[(cache_length + t) * width + e] = qkv_TQ[t * Q + H + e];
    v_cache[(cache_length + t) * width + e] = qkv_TQ[t * Q + H + width + e];
  }
}

// A warp per new token and head.
template <typename A>
__global__ void cached_forward(const A* qkv_TQ, HeadLayout layout, int64_t E, const A* k_cache,
                               const A* v_cache, int64_t cache_length, A* o_THE) {
  const int64_t t = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32, head = blockIdx.y;
  if (t >= layout.T) return;
  const int64_t group = head / (layout.H / layout.G), last = cache_length + t;
  const int64_t oldest = layout.window == 0 || last < layout.window ? 0 : last - layout.window + 1;
  const auto key = [&](int64_t s) { return k_cache + (s * layout.G + group) * E; };
  const auto value = [&](int64_t s) { return v_cache + (s * layout.G + group) * E; };
  attend(qkv_TQ + t * layout.Q + head * E, E, layout.scale, oldest, last, key, value,
         o_THE + (t * layout.H + head) * E, static_cast<float*>(nullptr));
}

// Rows of blocks, heads, and the rows of a block in fours.
dim3 warp_grid(int64_t num_blocks, int64_t heads) {
  return {static_cast<unsigned>(num_blocks), static_cast<unsigned>(heads), kAttentionRows / kWarps};
}

}  // namespace

template <typename A>
void plain_attention(const A* qkv_TQ, const AttentionShape& shape, const AttentionBatch& batch, A* o_THE,
                     float* lse_HT, CudaStream stream) {
  launch(plain_forward<A>, warp_grid(batch.num_blocks, shape.num_heads), dim3(32 * kWarps), 0, stream, qkv_TQ,
         HeadLayout(shape, batch.T), shape.head_dim, batch.blocks, o_THE, lse_HT);
}

template <typename A>
void attention_delta(const A* do_THE, const A* o_THE, const AttentionShape& shape, int64_t T, float* delta_HT,
                     CudaStream stream) {
  launch(delta_rows<A>, dim3(static_cast<unsigned>(divide_up(T * shape.num_heads, kWarps))),
         dim3(32 * kWarps), 0, stream, do_THE, o_THE, shape.num_heads, shape.head_dim, T, delta_HT);
}

template <typename A>
void plain_attention_backward(const A* do_THE, const A* qkv_TQ, const float* lse_HT, const float* delta_HT,
                              const AttentionShape& shape, const AttentionBatch& batch, A* dqkv_TQ,
                              CudaStream stream) {
  const HeadLayout layout(shape, batch.T);
  launch(plain_backward_q<A>, warp_grid(batch.num_blocks, shape.num_heads), dim3(32 * kWarps), 0, stream,
         do_THE, qkv_TQ, lse_HT, delta_HT, layout, shape.head_dim, batch.blocks, dqkv_TQ);
  launch(plain_backward_kv<A>, warp_grid(batch.num_blocks, shape.num_key_value_heads), dim3(32 * kWarps), 0,
         stream, do_THE, qkv_TQ, lse_HT, delta_HT, layout, shape.head_dim, batch.blocks, dqkv_TQ);
}

template <typename A>
void attention_cached(const A* qkv_TQ, const AttentionShape& shape, A* k_cache, A* v_cache,
                      int64_t cache_length, int64_t T, A* o_THE, CudaStream stream) {
  const int64_t E = shape.head_dim;
  launch(append_to_cache<A>, dim3(static_cast<unsigned>(T)), dim3(256), 0, stream, qkv_TQ,
         shape.num_heads * E, shape.num_key_value_heads * E, shape.qkv_width(), cache_length, k_cache,
         v_cache);
  launch(cached_forward<A>,
         dim3(static_cast<unsigned>(divide_up(T, kWarps)), static_cast<unsigned>(shape.num_heads)),
         dim3(32 * kWarps), 0, stream, qkv_TQ, HeadLayout(shape, T), E, static_cast<const A*>(k_cache),
         static_cast<const A*>(v_cache), cache_length, o_THE);
}

#define TESSERA_INSTANTIATE(A)                                                                           \
  template void plain_attention(const A*, const AttentionShape&, const AttentionBatch&, A*, float*,      \
                                CudaStream);                                                             \
  template void attention_delta(const A*, const A*, const AttentionShape&, int64_t, float*, CudaStream); \
  template void plain_attention_backward(const A*, const A*, const float*, const float*,                 \
                                         const AttentionShape&, const AttentionBatch&, A*, CudaStream);  \
  template void attention_cached(const A*, const AttentionShape&, A*, A*, int64_t, int64_t, A*, CudaStream);
TESSERA_INSTANTIATE(bf16)
TESSERA_INSTANTIATE(float)
#undef TESSERA_INSTANTIATE

}  // namespace tessera::cuda
