#include "devices/cuda/attention/hopper/tensor_map.h"

#include <cuda_runtime.h>

#include <cstdlib>
#include <string_view>

#include "devices/cuda/attention/hopper/kernels.h"
#include "devices/cuda/attention/hopper/wgmma.cuh"
#include "devices/cuda/cuda_check.h"

namespace tessera::cuda::hopper {
namespace {

int attribute(cudaDeviceAttr which) {
  int device = 0, value = 0;
  check_cuda(cudaGetDevice(&device));
  check_cuda(cudaDeviceGetAttribute(&value, which, device));
  return value;
}

// The driver's function: the program is not linked to the driver's library.
decltype(&cuTensorMapEncodeTiled) find_encode() {
  constexpr int kSince = 12000;
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
  check_cuda(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, kSince, cudaEnableDefault,
                                              &found));
  if (found != cudaDriverEntryPointSuccess) check_cuda(cudaErrorSymbolNotFound);
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

CUtensorMap head_tiles(const bf16* array, int64_t E, int64_t num_heads, int64_t T, int64_t stride, int rows) {
  static const auto encode = find_encode();
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(E), static_cast<cuuint64_t>(num_heads),
                              static_cast<cuuint64_t>(T)};
  const cuuint64_t strides[] = {
      sizeof(bf16) * static_cast<cuuint64_t>(E),  // bytes, from the second dimension on
      sizeof(bf16) * static_cast<cuuint64_t>(stride)};
  const cuuint32_t tile[] = {kPanelColumns, 1, static_cast<cuuint32_t>(rows)}, steps[] = {1, 1, 1};
  CUtensorMap map;
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, const_cast<bf16*>(array), sizes, strides, tile, steps,
             CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
             CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (status != CUDA_SUCCESS) check_cuda(status);  // the numbers of both kinds of errors are the same
  return map;
}

int num_multiprocessors() {
  static const int count = attribute(cudaDevAttrMultiProcessorCount);
  return count;
}

bool takes(const AttentionShape& shape) {
  static const bool is_hopper = [] {
    const char* const value = std::getenv("TESSERA_WGMMA");
    return (value == nullptr || std::string_view(value) != "0") &&
           attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
           attribute(cudaDevAttrComputeCapabilityMinor) == 0;
  }();
  return is_hopper && shape.head_dim >= kPanelColumns && shape.head_dim <= 2 * kPanelColumns &&
         shape.head_dim % 8 == 0 && shape.scale > 0;
}

}  // namespace tessera::cuda::hopper
