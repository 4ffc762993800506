// The parameters of a single rank on a device, updated by the host, which keeps the masters and the
// optimizer's state. Weights and float32 gradients are on the device, so that passes move nothing.
//
// An update only begins in update(): what is left of it follows group by group as the next pass opens their
// weights, so that the device computes with the first groups while the host still updates the last ones.
// Gradients come to the host, and weights return, a piece at a time, beside both.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "shard/gradients/gradient_ring.h"
#include "shard/parameters/parameter_state.h"
#include "tensor/device.h"

namespace tessera {

class OffloadedParameters : public ParameterState, private ParameterAccess {
 public:
  OffloadedParameters(TrainableModel& model, std::unique_ptr<const Optimizer> optimizer, bool decay_all,
                      ThreadPool& pool, int64_t ring_elements = kRingElements);

  void load(const SafetensorsModel& file, LoadOnce once,
            const std::function<void(const LoadProgress&)>& progress) override;
  WeightUpdate begin_pass(bool is_first, bool is_last) override;
  void end_pass() override {}
  double gradient_squares() const override { return squares_; }
  std::string not_finite_gradient() const override;
  // `before_change` is called, and must be callable, until all groups have been opened again or
  // finish_update().
  void update(const OptimizerStep& step, const ChangeHook& before_change) override;
  void finish_update() override { update_through(sent_.size() - 1); }
  double take_update_seconds() override { return std::exchange(seconds_, 0); }
  void settle_state(const ChangeHook& /*before_change*/) override { finish_update(); }
  StateTensors state_tensors() const override { return state_.optimizer().state_tensors(); }
  void export_masters(const std::function<void(const WeightSource&)>& write) override;
  std::vector<ElementRange> owned() const override { return {{0, model_->layout().num_elements()}}; }
  void read_state(StateKind kind, int64_t begin, std::span<float> values) const override;
  std::vector<ElementRange> kept() const override { return owned(); }
  void write_state(StateKind kind, int64_t begin, std::span<const float> values) override;
  void state_written() override;

 private:
  // An update that has not reached all groups.
  struct PendingUpdate {
    OptimizerStep step;
    ChangeHook before_change;
    size_t next_group = 0;
    int64_t num_fetched = 0;  // ranges whose gradients the host has or has asked for
  };

  Device& device() const override { return model_->device(); }
  std::byte* open_weights(int64_t group, WeightUse use) override;
  void close_weights(int64_t /*group*/) override {}
  void reserve_packed_forms(std::span<const int64_t> bytes_by_group) override;
  std::byte* packed_forms(int64_t /*group*/) override { return nullptr; }
  std::byte* open_gradients(int64_t group) override;
  void close_gradients(int64_t /*group*/) override {}

  // Continues the update up to and including this group.
  void update_through(size_t group);
  void update_group(size_t group);
  void fetch_gradients(int64_t end_range);
  CopyQueue::Mark weights_to_device(int64_t begin, int64_t end);
  TensorView host_weights() const { return host_weights_.view(model_->dtype(), device_weights_.shape()); }
  TensorView ring() const { return ring_.view(DType::kF32, {ring_.size_bytes() / dtype_bytes(DType::kF32)}); }

  TrainableModel* model_;
  ThreadPool* pool_;
  GradientRing slots_;
  std::vector<ParameterRange> ranges_;
  std::vector<int64_t> first_range_;  // by group, plus the end
  DeviceBuffer weights_, gradients_;  // on the device: in the training dtype, and float32
  TensorView device_weights_, device_gradients_;
  DeviceBuffer host_weights_, ring_;  // of the host
  OptimizerState state_;
  std::vector<std::shared_ptr<void>> pins_;  // of the host's memory
  std::unique_ptr<CopyQueue> to_host_, to_device_;
  std::vector<CopyQueue::Mark> fetched_;  // by slot of the ring
  std::vector<CopyQueue::Mark> sent_;     // by group: its last weights, until the device waits for them
  std::optional<PendingUpdate> update_;
  double seconds_ = 0;  // of updates, since they were taken
  double squares_ = 0;  // of the current step's gradients
};

}  // namespace tessera
