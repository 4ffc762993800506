#include "ops/device_peak.h"

#include <algorithm>

#include "base/rng.h"

namespace tessera {
namespace {

OpsLimits product_limits(DType dtype, int64_t size) {
  OpsLimits limits = {};
  limits.max_tokens = size;
  limits.dtype = dtype;
  limits.linears = {{size, {size, size}}};
  return limits;
}

}  // namespace

// Random values: with zeros the products would take less power and be faster.
DevicePeakMeter::DevicePeakMeter(Ops& ops, DType dtype, int64_t size)
    : ops_(ops), dtype_(dtype), size_(size), clock_(ops.device().make_clock()) {
  constexpr int64_t kPiece = 1 << 16;
  Device& device = ops.device();
  for (DeviceBuffer& matrix : matrices_) matrix = device.allocate(size * size * dtype_bytes(dtype));
  const DeviceBuffer piece_memory = host_device().allocate(kPiece * dtype_bytes(dtype));
  const TensorView piece = piece_memory.view(dtype, {kPiece});
  const CounterRng rng(/*seed=*/1, /*stream=*/0);
  for (int64_t i = 0; i < kPiece; ++i) {
    const float value = rng.normal(static_cast<uint64_t>(i));
    dtype == DType::kBF16 ? void(piece.as<bf16>()[i] = to_bf16(value)) : void(piece.as<float>()[i] = value);
  }
  for (size_t i = 0; i < 2; ++i) {
    const TensorView flat = matrices_[i].view(dtype, {size * size});
    for (int64_t begin = 0; begin < size * size; begin += kPiece) {
      const int64_t end = std::min(begin + kPiece, size * size);
      copy(piece.rows(0, end - begin), flat.rows(begin, end));
    }
  }
  workspace_ = device.allocate(ops.workspace_bytes(product_limits(dtype, size)));
}

int64_t DevicePeakMeter::size_bytes(const Ops& ops, DType dtype, int64_t size) {
  return 3 * size * size * dtype_bytes(dtype) + ops.workspace_bytes(product_limits(dtype, size));
}

std::string DevicePeakMeter::arithmetic() const {
  return dtype_ == DType::kBF16 ? "bf16 products, float32 sums" : "float32";
}

double DevicePeakMeter::measure(int64_t num_products) {
  const Shape shape = {size_, size_};
  ops_.bind_workspace(workspace_.span());
  double seconds = 0;
  clock_->begin();
  for (int64_t i = 0; i < num_products; ++i) {
    ops_.linear(matrices_[0].view(dtype_, shape), matrices_[1].view(dtype_, shape), {},
                matrices_[2].view(dtype_, shape));
  }
  clock_->end(&seconds);
  clock_->finish();
  const auto size = static_cast<double>(size_);
  return 2e-12 * static_cast<double>(num_products) * size * size * size / seconds;
}

}  // namespace tessera
