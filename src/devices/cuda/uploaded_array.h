// Short arrays of the host that operations read on a card.
#pragma once

#include <algorithm>
#include <span>
#include <type_traits>
#include <vector>

#include "devices/cuda/cuda_device.h"

namespace tessera::cuda {

// The copy of the array that was put here last. Layers ask for the same one again and again: it is sent once.
class UploadedArray {
 public:
  explicit UploadedArray(CudaDevice& device) : device_(&device) {}

  // Where the card finds `values`, until the next call.
  template <typename T>
  const std::remove_const_t<T>* put(std::span<T> values) {
    const std::span<const std::byte> bytes = std::as_bytes(values);
    if (!is_last(bytes)) {
      if (std::ssize(bytes) > memory_.size_bytes()) {
        memory_ = {};
        memory_ = device_->allocate(std::ssize(bytes));
      }
      device_->copy_from_host(bytes, memory_.address());
      last_.assign(bytes.begin(), bytes.end());
    }
    return reinterpret_cast<const std::remove_const_t<T>*>(memory_.address());
  }
  // Whether put() would have nothing to send.
  bool is_last(std::span<const std::byte> bytes) const {
    return !last_.empty() && std::ranges::equal(bytes, last_);
  }

 private:
  CudaDevice* device_;
  DeviceBuffer memory_;
  std::vector<std::byte> last_;
};

}  // namespace tessera::cuda
