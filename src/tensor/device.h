// Memory by device, and the only copies between a device and the host.
//
// A device carries out the host's requests, operations (ops/ops.h) and copies, in the order in which they are
// made. The host may run ahead of it, except where it receives a result. Copies of a CopyQueue are outside
// that order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>

#include "tensor/tensor_view.h"

namespace tessera {

class DeviceBuffer;

// Copies in their own order, outside the order of the device's other work. One thread at a time.
class CopyQueue {
 public:
  // The number of a copy.
  using Mark = uint64_t;

  virtual ~CopyQueue() = default;  // with all copies done

  // Copies asked for from now on begin after everything that the device has been asked for.
  virtual void follow_device() = 0;
  // to = from, one of which is on the host. Leave both alone until the copy is done. The host waits for it if
  // its memory is not pinned.
  virtual Mark copy(ConstTensorView from, TensorView to) = 0;
  // Work submitted to the device from now on begins after this copy and those before it.
  virtual void hold_device(Mark mark) = 0;
  // Returns once this copy and those before it are done.
  virtual void wait(Mark mark) = 0;
};

// Times what a device does, without waiting for it.
class DeviceClock {
 public:
  virtual ~DeviceClock() = default;
  // An interval begins, and ends, when the device has done everything asked so far. One that has been busy
  // since the last end() may begin the next there.
  virtual void begin() = 0;
  // Adds the interval's seconds to *sum_s, in finish() at the latest.
  virtual void end(double* sum_s) = 0;
  // Waits for the end of the last interval.
  virtual void finish() = 0;
  // Forgets the intervals that are not in their sums yet, without waiting.
  virtual void discard() = 0;
};

// Outlives its buffers, every view of them, and its clocks.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string_view name() const = 0;
  // Zero-filled, aligned to a page. Throws Error(kBadConfig) naming the size if there is not enough memory.
  virtual DeviceBuffer allocate(int64_t size_bytes) = 0;
  // `from` may be reused as soon as the call returns.
  virtual void copy_from_host(std::span<const std::byte> from, std::byte* to) = 0;
  // Returns with the data.
  virtual void copy_to_host(const std::byte* from, std::span<std::byte> to) = 0;
  // Waits for everything asked so far.
  virtual void synchronize() = 0;
  // Makes its copies at once unless the device can do better.
  virtual std::unique_ptr<CopyQueue> make_copy_queue();
  // Keeps these pages of the host in memory, where the device reaches them directly, until the result is
  // destroyed, which must be before they are freed. Null where that makes no difference or fails.
  virtual std::shared_ptr<void> pin(std::span<std::byte> /*memory*/) { return nullptr; }
  // By default the host's, for a device that has done what it was asked when the call returns.
  virtual std::unique_ptr<DeviceClock> make_clock();

  // For a device whose memory is not the host's: how many bytes of it are free, how many have been taken
  // since this process opened it, and among how many such devices the ranks of a machine are dealt out.
  struct OwnMemory {
    int64_t free_bytes = 0;
    int64_t used_bytes = 0;
    int num_devices = 1;
  };
  virtual std::optional<OwnMemory> own_memory() const { return std::nullopt; }
};

// The memory of this process. Allocates a PageBuffer.
Device& host_device();

// A block of a device's memory, freed with this object.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;  // empty
  // Destroying `memory` frees the block.
  DeviceBuffer(Device& device, std::shared_ptr<std::byte> memory, int64_t size_bytes)
      : device_(&device), memory_(std::move(memory)), size_bytes_(size_bytes) {}
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept {
    device_ = std::exchange(other.device_, nullptr);
    memory_ = std::move(other.memory_);
    size_bytes_ = std::exchange(other.size_bytes_, 0);
    return *this;
  }

  Device& device() const { return device_ == nullptr ? host_device() : *device_; }
  std::byte* address() const { return memory_.get(); }  // not for the host to read, unless it is the host's
  int64_t size_bytes() const { return size_bytes_; }
  std::span<std::byte> span() const { return {address(), static_cast<size_t>(size_bytes_)}; }
  // The first elements of the block.
  TensorView view(DType dtype, const Shape& shape) const;

 private:
  Device* device_ = nullptr;
  std::shared_ptr<std::byte> memory_;
  int64_t size_bytes_ = 0;
};

// to = from: the same dtype and number of elements. One of them is the host's.
void copy(ConstTensorView from, TensorView to);

}  // namespace tessera
