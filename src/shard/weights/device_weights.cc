#include "shard/weights/device_weights.h"

#include <numeric>
#include <utility>

#include "platform/prefault.h"

namespace tessera {

DeviceWeights::DeviceWeights(TrainableModel& model)
    : model_(&model),
      buffer_(model.device().allocate(model.layout().num_elements() * dtype_bytes(model.dtype()))),
      on_device_(buffer_.view(model.dtype(), {model.layout().num_elements()})) {}

void DeviceWeights::reserve_packed_forms(std::span<const int64_t> bytes_by_group, PackShare pack_share) {
  packed_ = model_->device().allocate(std::reduce(bytes_by_group.begin(), bytes_by_group.end()));
  forms_.clear();
  std::byte* next = packed_.address();
  for (const int64_t size_bytes : bytes_by_group) {
    forms_.push_back(size_bytes == 0 ? nullptr : next);
    next += size_bytes;
  }
  is_stale_.assign(forms_.size(), true);
  pack_share_ = std::move(pack_share);
}

std::byte* DeviceWeights::open(int64_t group, WeightUse /*use*/) {
  const int64_t begin = model_->layout().groups()[static_cast<size_t>(group)].begin;
  std::byte* const weights = on_device_.address() + begin * dtype_bytes(on_device_.dtype());
  if (packed_forms(group) != nullptr && is_stale_[static_cast<size_t>(group)]) {
    is_stale_[static_cast<size_t>(group)] = false;
    pack_share_(group, weights);
  }
  return weights;
}

HostUpdatedWeights::HostUpdatedWeights(TrainableModel& model, ThreadPool& pool)
    : DeviceWeights(model),
      host_(host_device().allocate(on_device_.size_bytes())),
      to_device_(model.device().make_copy_queue()),
      copied_(model.layout().groups().size()) {
  prefault(pool, host_.span());
  pin_ = model.device().pin(host_.span());
}

std::byte* HostUpdatedWeights::open(int64_t group, WeightUse use) {
  to_device_->hold_device(std::exchange(copied_[static_cast<size_t>(group)], 0));
  return DeviceWeights::open(group, use);
}

void HostUpdatedWeights::copy(int64_t group, int64_t begin, int64_t end) {
  copied_[static_cast<size_t>(group)] =
      to_device_->copy(memory().rows(begin, end), on_device_.rows(begin, end));
}

void HostUpdatedWeights::loaded(bool /*whole_node*/) {
  begin_copies();
  to_device_->hold_device(to_device_->copy(memory(), on_device_));
}

}  // namespace tessera
