#include "devices/cuda/cuda_device.h"

#include <cuda_runtime.h>

#include <array>
#include <memory>

#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "devices/cuda/cuda_check.h"
#include "devices/cuda/cuda_clock.h"

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

namespace {

// Copies on a stream of their own, with an event recorded after each.
class CudaCopies final : public CopyQueue {
 public:
  explicit CudaCopies(const CudaDevice& device) : device_(&device) {
    device_->make_current();
    check_cuda(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    for (cudaEvent_t& event : done_) check_cuda(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    check_cuda(cudaEventCreateWithFlags(&asked_, cudaEventDisableTiming));
  }
  ~CudaCopies() override {
    // The card may have failed, but a destructor cannot report it.
    static_cast<void>(cudaStreamSynchronize(stream_));
    for (cudaEvent_t event : done_) static_cast<void>(cudaEventDestroy(event));
    static_cast<void>(cudaEventDestroy(asked_));
    static_cast<void>(cudaStreamDestroy(stream_));
  }
  CudaCopies(const CudaCopies&) = delete;
  CudaCopies& operator=(const CudaCopies&) = delete;

  void follow_device() override {
    device_->make_current();
    check_cuda(cudaEventRecord(asked_, device_->stream()));
    check_cuda(cudaStreamWaitEvent(stream_, asked_, 0));
  }
  Mark copy(ConstTensorView from, TensorView to) override {
    TESSERA_CHECK(from.dtype() == to.dtype() && from.num_elements() == to.num_elements());
    device_->make_current();
    const auto size = static_cast<size_t>(to.size_bytes());
    const cudaMemcpyKind kind = from.is_on_host() ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost;
    check_cuda(cudaMemcpyAsync(to.address(), from.address(), size, kind, stream_));
    check_cuda(cudaEventRecord(event(++last_), stream_));
    return last_;
  }
  void hold_device(Mark mark) override {
    if (mark == 0) return;
    device_->make_current();
    check_cuda(cudaStreamWaitEvent(device_->stream(), event(mark), 0));
  }
  void wait(Mark mark) override {
    if (mark == 0) return;
    device_->make_current();
    check_cuda(cudaEventSynchronize(event(mark)));
  }

 private:
  // One that has been recorded again since stands for a later copy of the same stream.
  cudaEvent_t event(Mark mark) const { return done_[mark % done_.size()]; }

  const CudaDevice* device_;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t asked_ = nullptr;
  std::array<cudaEvent_t, 64> done_ = {};
  Mark last_ = 0;
};

}  // namespace

CudaDevice::CudaDevice(int local_rank) : index_(0) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status != cudaSuccess || count == 0) {
    fail(ExitCode::kBadConfig, "device cuda: expected an NVIDIA card, found {}; use device cpu",
         status != cudaSuccess ? cudaGetErrorString(status) : "none that CUDA_VISIBLE_DEVICES leaves");
  }
  num_cards_ = count;
  index_ = local_rank % count;
  make_current();
  cudaDeviceProp properties = {};
  check_cuda(cudaGetDeviceProperties(&properties, index_));
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

std::unique_ptr<CopyQueue> CudaDevice::make_copy_queue() { return std::make_unique<CudaCopies>(*this); }

std::shared_ptr<void> CudaDevice::pin(std::span<std::byte> memory) {
  if (memory.empty()) return nullptr;
  make_current();
  const cudaError_t status = cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable);
  if (status != cudaSuccess) {
    static_cast<void>(cudaGetLastError());  // it would be reported once more
    log_warning("{} of the host's memory cannot be pinned ({}): copies between it and {} take longer",
                format_bytes(static_cast<int64_t>(memory.size())), cudaGetErrorString(status), card_.name);
    return nullptr;
  }
  return {memory.data(), [](void* data) { static_cast<void>(cudaHostUnregister(data)); }};
}

std::unique_ptr<DeviceClock> CudaDevice::make_clock() { return std::make_unique<cuda::CudaClock>(*this); }

std::optional<Device::OwnMemory> CudaDevice::own_memory() const {
  const int64_t free = card().free_bytes;
  return OwnMemory{.free_bytes = free, .used_bytes = free_at_start_ - free, .num_devices = num_cards_};
}

CudaDevice& cuda_device(int local_rank) {
  // Never destroyed: the driver may be gone by then.
  static CudaDevice* const device = new CudaDevice(local_rank);
  return *device;
}

}  // namespace tessera
