// The layer between a model on a device and its parameters on the host: opened groups are copied to the
// device, where a few layers have places at a time, and the gradients that the model leaves there are copied
// back. Copies overlap the model's operations, which wait for the ones they need.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "model/parameter_access.h"
#include "shard/layout/device_window_places.h"
#include "tensor/device.h"

namespace tessera {

class DeviceWindow final : public ParameterAccess {
 public:
  // `host` opens memory of the host. `opens_ahead`: it lets weights of the next group be opened while a
  // group's weights are open. All must outlive this.
  DeviceWindow(Device& device, ParameterAccess& host, DeviceWindowPlaces places, bool opens_ahead);
  ~DeviceWindow() override;
  DeviceWindow(const DeviceWindow&) = delete;
  DeviceWindow& operator=(const DeviceWindow&) = delete;

  // Memory that the host opens parts of: copies of what is not pinned make the host wait. Outlives this.
  void pin(std::span<std::byte> memory) { pins_.push_back(device_->pin(memory)); }

  Device& device() const override { return *device_; }
  std::byte* open_weights(int64_t group, WeightUse use) override;
  void close_weights(int64_t group) override;
  // A device has no use for packed forms.
  void reserve_packed_forms(std::span<const int64_t> bytes_by_group) override;
  std::byte* packed_forms(int64_t /*group*/) override { return nullptr; }
  // The host's gradients are opened when the device's are closed, and closed in the same order, one group
  // later, or in finish_gradients(). The gradients of a pass replace whatever is there.
  std::byte* open_gradients(int64_t group) override;
  void close_gradients(int64_t group) override;
  void finish_gradients();
  // The host has new weights.
  void weights_changed();

 private:
  // A group that is open, or was, and the copy from or to its place.
  struct Transfer {
    int64_t group;
    CopyQueue::Mark done;
  };

  // Opens the group on the host and asks for its copy.
  Transfer upload(int64_t group, WeightUse use);
  void finish_upload(const Transfer& upload);
  // The next group in this direction; none after the last of a pass.
  std::optional<int64_t> next_group(int64_t group, WeightUse use) const;
  int64_t& holder_of_place(int64_t group);
  TensorView weights(int64_t group) const;
  TensorView gradients(int64_t group) const;

  Device* device_;
  ParameterAccess* host_;
  DeviceWindowPlaces places_;
  int64_t num_groups_;
  bool opens_ahead_;
  DeviceBuffer weight_memory_, gradient_memory_;
  std::vector<int64_t> holders_;    // by place of weights: the group whose current weights are there, or -1
  std::vector<Transfer> open_;      // by the model
  std::optional<Transfer> ahead_;   // opened on the host, not yet by the model
  std::optional<Transfer> closed_;  // by the model, not yet on the host
  std::map<int64_t, CopyQueue::Mark> last_download_;  // by place of gradients
  std::vector<std::shared_ptr<void>> pins_;
  std::unique_ptr<CopyQueue> uploads_, downloads_;
};

}  // namespace tessera
