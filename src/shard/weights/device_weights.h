// The weights of a single rank in the memory of the model's device.
#pragma once

#include <algorithm>
#include <memory>
#include <span>
#include <vector>

#include "model/trainable_model.h"
#include "shard/weights/weight_place.h"

namespace tessera {

// Updated there.
class DeviceWeights : public WeightPlace {
 public:
  explicit DeviceWeights(TrainableModel& model);

  Device& device() const { return model_->device(); }
  std::byte* open(int64_t group, WeightUse use) override;
  void reserve_packed_forms(std::span<const int64_t> bytes_by_group, PackShare pack_share) override;
  std::byte* packed_forms(int64_t group) override {
    return forms_.empty() ? nullptr : forms_[static_cast<size_t>(group)];
  }
  TensorView memory() const override { return on_device_; }
  int64_t index(int64_t /*group*/, int64_t element) const override { return element; }
  void loaded(bool /*whole_node*/) override {}
  void finish_updates() override { std::fill(is_stale_.begin(), is_stale_.end(), true); }

 protected:
  TrainableModel* model_;

 private:
  DeviceBuffer buffer_;
  DeviceBuffer packed_;
  std::vector<std::byte*> forms_;  // by group; empty: none are kept
  std::vector<bool> is_stale_;     // by group: its forms are of older weights
  PackShare pack_share_;

 protected:
  TensorView on_device_;
};

// Weights updated by the host, which has a copy. Copies to the device overlap its computation, and an opened
// group waits for its own copy.
class HostUpdatedWeights final : public DeviceWeights {
 public:
  HostUpdatedWeights(TrainableModel& model, ThreadPool& pool);

  std::byte* open(int64_t group, WeightUse use) override;
  TensorView memory() const override { return host_.view(on_device_.dtype(), on_device_.shape()); }
  void loaded(bool whole_node) override;

  // The copies that follow begin after everything that the device has been asked for.
  void begin_copies() { to_device_->follow_device(); }
  void copy(int64_t group, int64_t begin, int64_t end);

 private:
  DeviceBuffer host_;
  std::shared_ptr<void> pin_;
  std::unique_ptr<CopyQueue> to_device_;
  std::vector<CopyQueue::Mark> copied_;  // by group: the last copy, until the device waits for it
};

}  // namespace tessera
