#include "ops/cuda/cuda_device.h"

#include <cuda_runtime.h>

#include <memory>

#include "base/error.h"
#include "base/text.h"
#include "ops/cuda/cuda_check.h"

namespace tessera {

namespace cuda {

void check_cuda(int status, std::source_location where) {
  if (status == cudaSuccess) return;
  const auto error = static_cast<cudaError_t>(status);
  const ExitCode code = error == cudaErrorMemoryAllocation ? ExitCode::kBadConfig : ExitCode::kInternal;
  fail(code, "CUDA: {} ({}) at {}:{}", cudaGetErrorString(error), cudaGetErrorName(error), where.file_name(),
       where.line());
}

}  // namespace cuda

using cuda::check_cuda;

CudaDevice::CudaDevice(int index) : index_(index) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || index >= count) {
    fail(ExitCode::kBadConfig, "device cuda: expected an NVIDIA card, found {}; use device cpu",
         status != cudaSuccess ? cudaGetErrorString(status) : "none that CUDA_VISIBLE_DEVICES leaves");
  }
  make_current();
  cudaDeviceProp properties = {};
  check_cuda(cudaGetDeviceProperties(&properties, index));
  card_.name = static_cast<const char*>(properties.name);
  card_.compute_capability = 10 * properties.major + properties.minor;
  card_.memory_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  constexpr int kLeastCapability = 80;  // BF16 products
  if (card_.compute_capability < kLeastCapability) {
    fail(ExitCode::kBadConfig, "device cuda: expected compute capability 8.0 or later, found {}.{} ({})",
         properties.major, properties.minor, card_.name);
  }
  check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
  free_at_start_ = card().free_bytes;
}

void CudaDevice::make_current() const { check_cuda(cudaSetDevice(index_)); }

CudaCard CudaDevice::card() const {
  make_current();
  size_t free = 0, total = 0;
  check_cuda(cudaMemGetInfo(&free, &total));
  CudaCard card = card_;
  card.free_bytes = static_cast<int64_t>(free);
  return card;
}

DeviceBuffer CudaDevice::allocate(int64_t size_bytes) {
  if (size_bytes == 0) return {*this, nullptr, 0};
  make_current();
  void* address = nullptr;
  const cudaError_t status = cudaMalloc(&address, static_cast<size_t>(size_bytes));
  if (status == cudaErrorMemoryAllocation) {
    static_cast<void>(cudaGetLastError());  // it would be reported once more
    const CudaCard now = card();
    fail(ExitCode::kBadConfig, "{}: expected {} of free memory, found {} of {}", card_.name,
         format_bytes(size_bytes), format_bytes(now.free_bytes), format_bytes(now.memory_bytes));
  }
  check_cuda(status);
  const std::shared_ptr<std::byte> memory(static_cast<std::byte*>(address),
                                          [](std::byte* block) { static_cast<void>(cudaFree(block)); });
  check_cuda(cudaMemsetAsync(address, 0, static_cast<size_t>(size_bytes), stream_));
  return {*this, memory, size_bytes};
}

void CudaDevice::copy_from_host(std::span<const std::byte> from, std::byte* to) {
  if (from.empty()) return;
  make_current();
  check_cuda(cudaMemcpyAsync(to, from.data(), from.size(), cudaMemcpyHostToDevice, stream_));
  check_cuda(cudaStreamSynchronize(stream_));  // page-locked memory would still be read
}

void CudaDevice::copy_to_host(const std::byte* from, std::span<std::byte> to) {
  if (to.empty()) return;
  make_current();
  check_cuda(cudaMemcpyAsync(to.data(), from, to.size(), cudaMemcpyDeviceToHost, stream_));
  check_cuda(cudaStreamSynchronize(stream_));
}

void CudaDevice::synchronize() {
  make_current();
  check_cuda(cudaStreamSynchronize(stream_));
}

std::optional<Device::OwnMemory> CudaDevice::own_memory() const {
  const int64_t free = card().free_bytes;
  return OwnMemory{.free_bytes = free, .used_bytes = free_at_start_ - free};
}

CudaDevice& cuda_device() {
  // Never destroyed: the driver may be gone by then.
  static CudaDevice* const device = new CudaDevice(0);
  return *device;
}

}  // namespace tessera
