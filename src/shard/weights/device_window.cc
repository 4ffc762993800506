#include "shard/weights/device_window.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace tessera {
namespace {

// Places of weights: embedding, head, layers.
constexpr int64_t kEndPlaces = 2;

TensorView host_bytes(std::byte* data, int64_t size) { return {data, DType::kU8, {size}}; }

TensorView place_of(const DeviceBuffer& memory, const LayerPlaces& places, int64_t group) {
  const auto at = static_cast<size_t>(group);
  return memory.view(DType::kU8, {memory.size_bytes()})
      .rows(places.begin[at], places.begin[at] + places.sizes[at]);
}

}  // namespace

DeviceWindow::DeviceWindow(Device& device, ParameterAccess& host, DeviceWindowPlaces places, bool opens_ahead)
    : device_(&device),
      host_(&host),
      places_(std::move(places)),
      num_groups_(std::ssize(places_.weights.sizes)),
      opens_ahead_(opens_ahead),
      weight_memory_(device.allocate(places_.weights.memory_bytes)),
      gradient_memory_(device.allocate(places_.gradients.memory_bytes)),
      holders_(static_cast<size_t>(kEndPlaces + kLayerSlots), -1),
      uploads_(device.make_copy_queue()),
      downloads_(device.make_copy_queue()) {}

DeviceWindow::~DeviceWindow() = default;

void DeviceWindow::reserve_packed_forms(std::span<const int64_t> /*bytes_by_group*/) {
  TESSERA_CHECK(false, "packed forms on {}", device_->name());
}

int64_t& DeviceWindow::holder_of_place(int64_t group) {
  const int64_t place = group == 0 ? 0 : group + 1 == num_groups_ ? 1 : kEndPlaces + layer_slot(group);
  return holders_[static_cast<size_t>(place)];
}

TensorView DeviceWindow::weights(int64_t group) const {
  return place_of(weight_memory_, places_.weights, group);
}

TensorView DeviceWindow::gradients(int64_t group) const {
  return place_of(gradient_memory_, places_.gradients, group);
}

// Work submitted to the device so far uses older groups, among them the one that had this place.
DeviceWindow::Transfer DeviceWindow::upload(int64_t group, WeightUse use) {
  std::byte* const from = host_->open_weights(group, use);
  const TensorView to = weights(group);
  int64_t& holder = holder_of_place(group);
  if (holder == group || to.size_bytes() == 0) return {group, 0};
  holder = group;
  uploads_->follow_device();
  return {group, uploads_->copy(host_bytes(from, to.size_bytes()), to)};
}

// The host's memory is wanted for other groups once it is closed.
void DeviceWindow::finish_upload(const Transfer& upload) {
  uploads_->wait(upload.done);
  host_->close_weights(upload.group);
}

// The model turns round at the head, and comes back to the embedding with another pass.
std::optional<int64_t> DeviceWindow::next_group(int64_t group, WeightUse use) const {
  const bool is_forward = use == WeightUse::kForward && group + 1 < num_groups_;
  if (is_forward) return group + 1;
  return group > 1 ? std::optional(group - 1) : std::nullopt;
}

std::byte* DeviceWindow::open_weights(int64_t group, WeightUse use) {
  if (ahead_ && ahead_->group != group) finish_upload(*std::exchange(ahead_, std::nullopt));
  const Transfer opened = ahead_ ? *std::exchange(ahead_, std::nullopt) : upload(group, use);
  open_.push_back(opened);
  uploads_->hold_device(opened.done);
  const std::optional<int64_t> next = opens_ahead_ ? next_group(group, use) : std::nullopt;
  if (next) ahead_ = upload(*next, *next > group ? WeightUse::kForward : WeightUse::kBackward);
  return weights(group).address();
}

void DeviceWindow::close_weights(int64_t group) {
  const auto at = std::ranges::find(open_, group, &Transfer::group);
  TESSERA_CHECK(at != open_.end(), "group {} is not open", group);
  finish_upload(*at);
  open_.erase(at);
}

std::byte* DeviceWindow::open_gradients(int64_t group) {
  const TensorView to = gradients(group);
  // Whoever had this place has to be on the host.
  downloads_->hold_device(last_download_[places_.gradients.begin[static_cast<size_t>(group)]]);
  return to.address();
}

void DeviceWindow::close_gradients(int64_t group) {
  finish_gradients();
  const TensorView from = gradients(group);
  std::byte* const to = host_->open_gradients(group);
  CopyQueue::Mark& done = last_download_[places_.gradients.begin[static_cast<size_t>(group)]];
  if (from.size_bytes() > 0) {
    downloads_->follow_device();
    done = downloads_->copy(from, host_bytes(to, from.size_bytes()));
  }
  closed_ = {group, done};
}

void DeviceWindow::finish_gradients() {
  if (!closed_) return;
  const Transfer closed = *std::exchange(closed_, std::nullopt);
  downloads_->wait(closed.done);
  host_->close_gradients(closed.group);
}

void DeviceWindow::weights_changed() {
  if (ahead_) finish_upload(*std::exchange(ahead_, std::nullopt));
  std::ranges::fill(holders_, -1);
}

}  // namespace tessera
