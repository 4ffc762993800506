// Launching kernels with every error checked.
#pragma once

#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <utility>

#include "devices/cuda/cuda_check.h"
#include "devices/cuda/cuda_stream.h"

namespace tessera::cuda {

// ceil(a / b).
__host__ __device__ constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The block's dynamic shared memory.
template <typename T>
__device__ T* dynamic_shared() {
  extern __shared__ __align__(128) unsigned char dynamic_shared_memory[];
  return reinterpret_cast<T*>(dynamic_shared_memory);
}

// kernel<<<grid, block, shared_bytes, stream>>>(arguments...). An empty grid does nothing.
template <typename... Parameters, typename... Arguments>
void launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, CudaStream stream,
            Arguments&&... arguments) {
  if (grid.x == 0 || grid.y == 0 || grid.z == 0) return;
  constexpr size_t kSharedWithoutAsking = 48 << 10;
  if (shared_bytes > kSharedWithoutAsking) {
    check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                    static_cast<int>(shared_bytes)));
  }
  kernel<<<grid, block, shared_bytes, stream>>>(std::forward<Arguments>(arguments)...);
  check_cuda(cudaGetLastError());
}

}  // namespace tessera::cuda
