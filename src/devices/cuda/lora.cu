#include "devices/cuda/lora.h"

#include "devices/cuda/launch.cuh"
#include "devices/cuda/numbers.cuh"

namespace tessera::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerCounter = 8;  // 16 bits for each element, of a counter's 128

// philox4x32() of base/rng.h.
__device__ void random_words(uint64_t key, uint64_t counter_low, uint64_t counter_high, uint32_t (&c)[4]) {
  auto k0 = static_cast<uint32_t>(key), k1 = static_cast<uint32_t>(key >> 32);
  c[0] = static_cast<uint32_t>(counter_low), c[1] = static_cast<uint32_t>(counter_low >> 32);
  c[2] = static_cast<uint32_t>(counter_high), c[3] = static_cast<uint32_t>(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t product0 = uint64_t{0xD2511F53u} * c[0], product1 = uint64_t{0xCD9E8D57u} * c[2];
    c[0] = static_cast<uint32_t>(product1 >> 32) ^ c[1] ^ k0;
    c[1] = static_cast<uint32_t>(product1);
    c[2] = static_cast<uint32_t>(product0 >> 32) ^ c[3] ^ k1;
    c[3] = static_cast<uint32_t>(product0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
}

template <typename A>
__global__ void place(const A* b_NR, int64_t outputs, int64_t rank, float scale, A* e, int64_t stride) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= outputs * rank) return;
  const int64_t i = index / outputs, j = index % outputs;
  store(e + i * stride + j, scale * load(b_NR[j * rank + i]));
}

__global__ void take(const float* de, int64_t stride, int64_t outputs, int64_t rank, float scale, float* db_NR,
                     bool adds) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= outputs * rank) return;
  const int64_t i = index / outputs, j = index % outputs;
  const float gradient = __fmul_rn(scale, de[i * stride + j]);
  float* const to = db_NR + j * rank + i;
  *to = adds ? *to + gradient : gradient;
}

// A thread per counter.
template <typename A>
__global__ void drop(const A* x_TD, const uint64_t* tokens, uint64_t site, uint32_t threshold, float scale, bool adds,
                     int64_t D, int64_t per_row, int64_t count, A* y_TD) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (index >= count) return;
  const int64_t t = index / per_row, counter = index % per_row;
  uint32_t words[4];
  random_words(site, static_cast<uint64_t>(counter), tokens[t], words);
#pragma unroll
  for (int i = 0; i < kPerCounter; ++i) {
    const int64_t d = counter * kPerCounter + i;
    if (d >= D) break;
    const uint32_t bits = words[i / 2] >> (16 * (i % 2)) & 0xFFFF;
    const float kept = bits < threshold ? 0.0f : __fmul_rn(scale, load(x_TD[t * D + d]));
    store(y_TD + t * D + d, adds ? load(y_TD[t * D + d]) + kept : kept);
  }
}

dim3 blocks(int64_t count) { return dim3(static_cast<unsigned>(divide_up(count, kThreads))); }

}  // namespace

template <typename A>
void lora_place(const A* b_NR, int64_t outputs, int64_t rank, float scale, A* e, int64_t stride, CudaStream stream) {
  launch(place<A>, blocks(outputs * rank), dim3(kThreads), 0, stream, b_NR, outputs, rank, scale, e, stride);
}

void lora_take(const float* de, int64_t stride, int64_t outputs, int64_t rank, float scale, float* db_NR, bool adds,
               CudaStream stream) {
  launch(take, blocks(outputs * rank), dim3(kThreads), 0, stream, de, stride, outputs, rank, scale, db_NR, adds);
}

template <typename A>
void dropout(const A* x_TD, const uint64_t* tokens, uint64_t site, uint32_t threshold, float scale, bool adds, int64_t T,
             int64_t D, A* y_TD, CudaStream stream) {
  const int64_t per_row = divide_up(D, kPerCounter);
  launch(drop<A>, blocks(T * per_row), dim3(kThreads), 0, stream, x_TD, tokens, site, threshold, scale, adds, D, per_row,
         T * per_row, y_TD);
}

template void lora_place(const bf16*, int64_t, int64_t, float, bf16*, int64_t, CudaStream);
template void lora_place(const float*, int64_t, int64_t, float, float*, int64_t, CudaStream);
template void dropout(const bf16*, const uint64_t*, uint64_t, uint32_t, float, bool, int64_t, int64_t, bf16*, CudaStream);
template void dropout(const float*, const uint64_t*, uint64_t, uint32_t, float, bool, int64_t, int64_t, float*,
                      CudaStream);

}  // namespace tessera::cuda
