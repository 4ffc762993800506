#include "tensor/device.h"

#include <cstring>

#include "base/clock.h"
#include "base/memory.h"

namespace tessera {
namespace {

class ImmediateCopies final : public CopyQueue {
 public:
  void follow_device() override {}
  Mark copy(ConstTensorView from, TensorView to) override {
    tessera::copy(from, to);
    return 0;
  }
  void hold_device(Mark /*mark*/) override {}
  void wait(Mark /*mark*/) override {}
};

class HostDevice final : public Device {
 public:
  std::string_view name() const override { return "host"; }
  DeviceBuffer allocate(int64_t size_bytes) override {
    const auto pages = std::make_shared<PageBuffer>(size_bytes);
    return {*this, std::shared_ptr<std::byte>(pages, pages->data()), size_bytes};
  }
  void copy_from_host(std::span<const std::byte> from, std::byte* to) override {
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
  }
  void copy_to_host(const std::byte* from, std::span<std::byte> to) override {
    if (!to.empty()) std::memcpy(to.data(), from, to.size());
  }
  void synchronize() override {}
};

class HostClock final : public DeviceClock {
 public:
  void begin() override { since_begin_ = Stopwatch(); }
  void end(double* sum_s) override { *sum_s += since_begin_.seconds(); }
  void finish() override {}
  void discard() override {}

 private:
  Stopwatch since_begin_;
};

}  // namespace

std::unique_ptr<CopyQueue> Device::make_copy_queue() { return std::make_unique<ImmediateCopies>(); }
std::unique_ptr<DeviceClock> Device::make_clock() { return std::make_unique<HostClock>(); }

Device& host_device() {
  static HostDevice device;
  return device;
}

TensorView DeviceBuffer::view(DType dtype, const Shape& shape) const {
  const TensorView result(address(), dtype, shape, device());
  TESSERA_CHECK(result.size_bytes() <= size_bytes_, "{} {} in a buffer of {} bytes", dtype_name(dtype),
                shape.to_string(), size_bytes_);
  return result;
}

void copy(ConstTensorView from, TensorView to) {
  TESSERA_CHECK(from.dtype() == to.dtype() && from.num_elements() == to.num_elements(), "{} {} to {} {}",
                dtype_name(from.dtype()), from.shape().to_string(), dtype_name(to.dtype()),
                to.shape().to_string());
  const auto size = static_cast<size_t>(to.size_bytes());
  if (from.is_on_host()) {
    to.device().copy_from_host({from.bytes(), size}, to.address());
  } else {
    from.device().copy_to_host(from.address(), {to.bytes(), size});
  }
}

}  // namespace tessera
