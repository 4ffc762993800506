// The arithmetic peak of a device with memory of its own: what products of large square matrices reach there.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>

#include "ops/ops.h"

namespace tessera {

class DevicePeakMeter {
 public:
  static constexpr int64_t kSize = 8192;

  // Allocates three matrices [size, size] there. `ops` must outlive this.
  DevicePeakMeter(Ops& ops, DType dtype, int64_t size = kSize);
  static int64_t size_bytes(const Ops& ops, DType dtype, int64_t size = kSize);

  std::string arithmetic() const;  // "bf16 products, float32 sums" or "float32"

  // 10^12 multiplications and additions per second of device time, over `num_products` products. Binds its
  // own workspace to the operations.
  double measure(int64_t num_products);

 private:
  Ops& ops_;
  DType dtype_;
  int64_t size_;
  std::array<DeviceBuffer, 3> matrices_;
  DeviceBuffer workspace_;
  std::unique_ptr<DeviceClock> clock_;
};

}  // namespace tessera
