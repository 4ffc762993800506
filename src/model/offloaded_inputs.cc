#include "model/offloaded_inputs.h"

#include <algorithm>

#include "base/memory.h"

namespace tessera {
namespace {

std::span<std::byte> slot_of(TensorView x_TD) {
  const int64_t bytes = x_TD.num_elements() * dtype_bytes(x_TD.dtype());
  return {x_TD.bytes(), static_cast<size_t>(OffloadedInputs::slot_bytes(bytes))};
}

}  // namespace

int64_t OffloadedInputs::slot_bytes(int64_t bytes) { return round_up(bytes, kDirectAlignment); }

int64_t OffloadedInputs::file_bytes(int64_t num_layers, int64_t slot_bytes) {
  return std::max<int64_t>(0, num_layers - kSlots) * slot_bytes;
}

OffloadedInputs::OffloadedInputs(const std::filesystem::path& path, int64_t num_layers, int64_t slot_bytes,
                                 const AsyncFileSettings& settings)
    : num_layers_(num_layers),
      slot_bytes_(slot_bytes),
      file_(path, file_bytes(num_layers, slot_bytes), settings) {}

void OffloadedInputs::begin() {
  file_.wait_all();  // of a pass that was abandoned
  transfers_ = {};
}

void OffloadedInputs::after_forward(int64_t layer, TensorView x_TD) {
  if (layer + kSlots >= num_layers_) return;
  transfers_[static_cast<size_t>(layer % kSlots)] = file_.write(layer * slot_bytes_, slot_of(x_TD));
}

void OffloadedInputs::after_backward(int64_t layer, TensorView x_TD) {
  const int64_t below = layer - kSlots;
  if (below < 0) return;
  transfers_[static_cast<size_t>(layer % kSlots)] = file_.read(below * slot_bytes_, slot_of(x_TD));
}

void OffloadedInputs::wait(int64_t layer) {
  std::optional<AsyncFile::Ticket>& transfer = transfers_[static_cast<size_t>(layer % kSlots)];
  if (transfer) file_.wait(*transfer);
  transfer.reset();
}

}  // namespace tessera
