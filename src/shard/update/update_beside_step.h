// The host's update of a device's weights, overlapped with the passes of the next step: update() only begins
// it. The rest follows group by group as the next pass opens their weights, so that the device computes with
// the first groups while the host still updates the last ones. Gradients come to the host, and weights
// return, a piece at a time, overlapped with both.
#pragma once

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "optim/state_parts.h"
#include "shard/gradients/gradient_ring.h"
#include "shard/update/update_rule.h"
#include "shard/weights/device_weights.h"

namespace tessera {

// Memory of the host for gradients on their way from a device, a range of the state at a time.
class RingOfGradients {
 public:
  RingOfGradients(Device& device, const GradientRing& slots, ThreadPool& pool);

  // Ranges cut to the size of a slot; their gradients use the slots in turn.
  std::vector<ParameterRange> cut(const std::vector<ParameterRange>& ranges) const;
  TensorView memory() const { return buffer_.view(DType::kF32, {slots_.num_elements()}); }
  int64_t num_slots() const { return slots_.num_slots; }

 private:
  GradientRing slots_;
  DeviceBuffer buffer_;
  std::shared_ptr<void> pin_;
};

class UpdateBesideStep final : public UpdateRule {
 public:
  // `gradients` are the device's; `ranges` were cut by the ring.
  UpdateBesideStep(GroupUpdate group_update, HostUpdatedWeights& weights, ConstTensorView gradients,
                   RingOfGradients& ring, const std::vector<ParameterRange>& ranges);

  void before_open(int64_t group) override { update_through(group); }
  // `before_change` must be callable until all groups have been opened again, or finish().
  void update(const OptimizerStep& step, const ChangeHook& before_change) override;
  void finish() override { update_through(group_update_.num_groups() - 1); }
  double take_seconds() override { return std::exchange(seconds_, 0); }
  bool is_pending() const override { return update_.has_value(); }

 private:
  // An update that has not reached all groups.
  struct Pending {
    OptimizerStep step;
    ChangeHook before_change;
    int64_t next_group = 0;
    int64_t num_fetched = 0;  // ranges whose gradients the host has or has asked for
  };

  // Continues the update up to and including this group.
  void update_through(int64_t group);
  void update_group(int64_t group);
  void fetch_gradients(int64_t end_range);

  GroupUpdate group_update_;
  HostUpdatedWeights* weights_;
  ConstTensorView gradients_;
  RingOfGradients* ring_;
  std::vector<ParameterRange> ranges_;
  std::unique_ptr<CopyQueue> to_host_;
  std::vector<CopyQueue::Mark> fetched_;  // by slot of the ring
  std::optional<Pending> update_;
  double seconds_ = 0;  // since they were taken
};

}  // namespace tessera
